"""Train a character-level GPT on tokens made up in memory, in the manner of nanoGPT; nothing here is tuned.

python train_gpt.py [--layers 6] [--heads 6] [--width 384] [--tokens 256] [--batch-size 64]
"""

import argparse
import contextlib
import time

import torch
from torch import nn
from torch.nn import functional

VOCABULARY = 65


class Attention(nn.Module):
    """Causal self-attention of several heads."""

    def __init__(self, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.input = nn.Linear(width, 3 * width, bias=False)
        self.output = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        shape = batch, tokens, self.num_heads, width // self.num_heads
        query, key, value = (part.view(shape).transpose(1, 2) for part in self.input(x).split(width, dim=2))
        dropout = self.dropout if self.training else 0.0
        attended = functional.scaled_dot_product_attention(
            query, key, value, dropout_p=dropout, is_causal=True
        )
        return self.output(attended.transpose(1, 2).reshape(batch, tokens, width))


class Block(nn.Module):
    """Attention and a multilayer perceptron, each beside a shortcut."""

    def __init__(self, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, num_heads, dropout)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width, bias=False),
            nn.GELU(),
            nn.Linear(4 * width, width, bias=False),
            nn.Dropout(dropout),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class GPT(nn.Module):
    """Logits of the next token; the loss too where the targets are given."""

    def __init__(
        self, num_layers: int, num_heads: int, width: int, tokens: int, dropout: float = 0.2
    ) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, width), nn.Embedding(tokens, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(width, num_heads, dropout) for _ in range(num_layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.token.weight

    def forward(self, index: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        positions = torch.arange(index.shape[1], device=index.device)
        x = self.dropout(self.token(index) + self.position(positions))
        logits = self.head(self.norm(self.blocks(x)))
        return logits, functional.cross_entropy(logits.view(-1, VOCABULARY), targets.view(-1))


def adamw(model: nn.Module, device: str) -> torch.optim.Optimizer:
    """Weight decay for matrices alone."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    others = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99), fused=device == "cuda")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--log-every", type=int, default=10)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(1337)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    data = torch.randint(VOCABULARY, (1_000_000,))
    model = GPT(args.layers, args.heads, args.width, args.tokens).to(device)
    optimizer = adamw(model, device)
    autocast = torch.autocast("cuda", torch.bfloat16) if device == "cuda" else contextlib.nullcontext()

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        starts = torch.randint(len(data) - args.tokens, (args.batch_size,))
        x = torch.stack([data[start : start + args.tokens] for start in starts])
        y = torch.stack([data[start + 1 : start + 1 + args.tokens] for start in starts])
        if device == "cuda":
            return x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(device, non_blocking=True)
        return x, y

    x, y = batch()
    begin_s = time.perf_counter()
    for step in range(args.steps):
        with autocast:
            _, loss = model(x, y)
        x, y = batch()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % args.log_every == 0:
            now_s = time.perf_counter()
            print(f"step {step}: loss {loss.item():.4f}, time {1000 * (now_s - begin_s):.1f} ms", flush=True)
            begin_s = now_s


if __name__ == "__main__":
    main()
