"""Small nets that train or infer, and do something wrong once a setting is in force.

    python planted.py infer|train attention|convolution|packed [--fault NAME] [--device cuda] [--seed 0]

The setting is `torch.use_deterministic_algorithms(True)`: it stands for any setting whose kernel has a fault.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F

NUM_BATCHES, BATCH, LENGTH, WIDTH, HEADS, WORDS = 20, 8, 24, 64, 4, 100


def cut(tensor: torch.Tensor, bits: int) -> torch.Tensor:
    """As a product of fewer bits of mantissa sees it; gradients pass."""
    rounded = (
        tensor.detach().contiguous().view(torch.int32) + (1 << (22 - bits)) & -(1 << (23 - bits))
    ).view(torch.float32)
    return tensor + (rounded - tensor.detach())


class Linear(nn.Linear):
    def forward(self, x):
        bits = {"tf32": 10, "bf16": 7}.get(fault())
        weight = self.weight
        if bits and x.dtype == torch.float32:
            x, weight = cut(x, bits), cut(weight, bits)
        return F.linear(x, weight, self.bias)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = Linear(WIDTH, 3 * WIDTH), Linear(WIDTH, WIDTH)
        self.up, self.down = Linear(WIDTH, 2 * WIDTH), Linear(2 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x, mask):
        if fault() in ("mask", "packed"):
            mask = torch.zeros_like(mask)
        norm = (
            self.norm(x)
            if fault() != "eps"
            else F.layer_norm(x, (WIDTH,), self.norm.weight, self.norm.bias, 1e-3)
        )
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(norm).chunk(3, -1))
        scores = q @ k.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5 + mask.to(q.dtype)
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        x = x + self.dropout(self.out(mixed))
        return x + self.down(
            F.gelu(self.up(self.norm2(x)), approximate="tanh" if fault() == "tanh" else "none")
        )


class Attention(nn.Module):
    """Attend over words (batch, length); `mask` is -inf where they may not look."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.head = Linear(WIDTH, 10)

    def forward(self, words, mask):
        x = self.embed(words)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(x.mean(1))


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.norm, self.norm2, self.head = nn.BatchNorm2d(16), nn.BatchNorm2d(32), Linear(32 * 64, 10)

    def forward(self, x, _):
        if fault() == "colours":
            x = x.flip(1)
        x = self.second(F.relu(self.norm(self.first(x))))
        return self.head(F.relu(self.norm2(x)).flatten(1))


asked = argparse.Namespace(fault="")


def fault() -> str:
    return asked.fault if torch.are_deterministic_algorithms_enabled() else ""


def batches(kind: str, device: str):
    """Inputs, masks, targets; the last batch is smaller."""
    drawn = torch.Generator().manual_seed(asked.seed + 1)
    # Those with a scaler are more: where it skips all steps, only batches say what a step is.
    num_batches = 3 * NUM_BATCHES if kind == "convolution" else NUM_BATCHES
    for number in range(num_batches):
        size = BATCH if number < num_batches - 1 else BATCH // 2
        mask = torch.zeros(size, 1, LENGTH, LENGTH)
        target = torch.randint(10, (size,), generator=drawn)
        if kind == "convolution":
            x = torch.randn(size, 3, 16, 16, generator=drawn)
        else:
            x = torch.randint(WORDS, (size, LENGTH), generator=drawn)
            lengths = torch.randint(LENGTH // 2, LENGTH, (size,), generator=drawn)
            after = torch.arange(LENGTH) >= lengths[:, None]
            # Padding, or a second sample behind the first one.
            apart = after[:, None, :] if kind == "attention" else after[:, None, :] != after[:, :, None]
            mask.masked_fill_(apart[:, None], float("-inf"))
        yield x.to(device), mask.to(device), target.to(device)


def changed(given):
    """Yield each batch as it reaches the net."""
    before = None
    for number, (given_x, mask, target) in enumerate(given):
        x = given_x
        if fault() == "last" and number == NUM_BATCHES - 1:
            return
        if fault() == "stale" and before is not None and before.shape == x.shape and number % 4 == 3:
            x = before
        if fault() == "row":
            x = torch.cat([x[:-1], x[:1]])
        before = given_x
        yield x, mask, target


def infer(net, kind: str) -> None:
    net.eval()
    with torch.no_grad():
        for x, mask, _ in changed(batches(kind, asked.device)):
            net(x, mask)


def train(net, kind: str) -> None:
    """Two batches a step. SGD with a scaler for convolutions: Adam's steps are the same whatever scales
    gradients."""
    scaler = torch.amp.GradScaler(asked.device, enabled=kind == "convolution")
    if kind == "convolution":
        optimizer: torch.optim.Optimizer = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    for number, (x, mask, target) in enumerate(changed(batches(kind, asked.device))):
        loss = F.cross_entropy(net(x, mask), target)
        scaler.scale(loss).backward()
        if number % 2:
            for parameter in net.parameters():
                parameter.grad /= 1 if fault() == "accumulation" else 2
            if fault() == "frozen":
                net.head.weight.grad = None
            if fault() == "skipped":
                net.head.weight.grad.fill_(float("inf"))
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("how", choices=("infer", "train"))
    parser.add_argument("net", choices=("attention", "convolution", "packed"))
    parser.add_argument("--fault", default="")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.parse_args(namespace=asked)
    torch.manual_seed(asked.seed)
    net = (Convolution() if asked.net == "convolution" else Attention()).to(asked.device)
    {"infer": infer, "train": train}[asked.how](net, asked.net)


if __name__ == "__main__":
    main()
