"""A small training whose outputs can be compared, and which tells when each of its steps ended.

    python recorded.py --device cpu|cuda --side FILE [--steps N]

It prints losses in full and a digest of the weights, and exits with code 7. Without `--steps` it makes steps
for three seconds, and the side file says how many of them take 26 s.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn

WARM_UP, SAID_EVERY, LENGTH_S = 200, 250, 26.0
EXIT_CODE = 7


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.mix(self.norm(x)).chunk(3, -1)
        x = x + torch.softmax(q @ k.transpose(1, 2) / q.shape[-1] ** 0.5, -1) @ v
        return x + self.down(torch.relu(self.up(x)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--side", type=Path, required=True)
    chosen = parser.parse_args()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    width, layers, length, batch = (256, 4, 128, 16) if chosen.device == "cuda" else (32, 1, 8, 4)
    blocks = [Block(width) for _ in range(layers)]
    model = nn.Sequential(nn.Linear(64, width), *blocks, nn.Linear(width, 64)).to(chosen.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = torch.randn(64, batch, length, 64)
    ends_s: list[float] = []

    def step() -> torch.Tensor:
        inputs = data[len(ends_s) % len(data)].to(chosen.device)
        loss = nn.functional.mse_loss(model(inputs), inputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if chosen.device == "cuda" and len(ends_s) % 10 == 9:
            torch.cuda.synchronize()
        ends_s.append(time.perf_counter())
        return loss

    for _ in range(WARM_UP):
        loss = step()
    print("warm", loss.item().hex(), flush=True)
    if not chosen.steps:
        begin_s = time.perf_counter()
        while time.perf_counter() - begin_s < 3:
            step()
        step_s = (ends_s[-1] - begin_s) / (len(ends_s) - WARM_UP)
        chosen.side.write_text(json.dumps({"steps": WARM_UP + int(LENGTH_S / step_s)}))
        return
    while len(ends_s) < chosen.steps:
        loss = step()
        if len(ends_s) % SAID_EVERY == 0:
            print(len(ends_s), loss.item().hex(), flush=True)
    weights = b"".join(weight.detach().cpu().numpy().tobytes() for weight in model.parameters())
    print("weights", hashlib.sha256(weights).hexdigest(), flush=True)
    chosen.side.write_text(json.dumps({"ends_s": ends_s}))
    sys.exit(EXIT_CODE)


if __name__ == "__main__":
    main()
