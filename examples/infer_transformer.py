"""Run a small transformer at batch 1 and read the answer after each call, as a server does.

python infer_transformer.py --steps 2000

Its matrices are small, so on a GPU the time goes into launching kernels, not into arithmetic.
"""

import argparse

import torch
from torch import nn


class Layer(nn.Module):
    """Attention and a feed-forward network, each with a way around it."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.before_attention = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.before_feed_forward = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        heads = self.query_key_value(self.before_attention(x)).view(batch, length, 3, self.num_heads, -1)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(query, key, value)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.feed_forward(self.before_feed_forward(x))


class SmallTransformer(nn.Module):
    """Token numbers (batch × length) to scores of what comes next (batch × vocabulary)."""

    def __init__(
        self, vocabulary: int = 1000, width: int = 128, num_heads: int = 4, num_layers: int = 4
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.Sequential(*(Layer(width, num_heads) for _ in range(num_layers)))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embedding(tokens))[:, -1])


def infer(num_steps: int, device: str, *, length: int = 32, log_every: int = 500) -> None:
    torch.manual_seed(0)
    half = torch.float16 if device.startswith("cuda") else torch.float32
    model = SmallTransformer().to(device, half).eval()
    tokens = torch.randint(0, 1000, (1, length), device=device)
    with torch.inference_mode():
        for step in range(1, num_steps + 1):
            answer = model(tokens).argmax(dim=-1).item()
            if step % log_every == 0 or step == num_steps:
                print(f"step {step}  answer {answer}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--length", type=int, default=32, help="tokens a call")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    infer(args.steps, args.device, length=args.length)


if __name__ == "__main__":
    main()
