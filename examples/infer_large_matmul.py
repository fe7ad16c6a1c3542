"""Multiply large matrices: one linear layer of size × size on a batch of size rows.

python infer_large_matmul.py --size 8192
"""

import argparse

import torch
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    torch.manual_seed(0)
    half = torch.float16 if args.device.startswith("cuda") else torch.float32
    model = nn.Linear(args.size, args.size, bias=False).to(args.device, half).eval()
    x = torch.randn(args.size, args.size).to(args.device, half)
    with torch.inference_mode():
        for step in range(1, args.steps + 1):
            y = model(x)
            if step % 100 == 0 or step == args.steps:
                print(f"step {step}  mean {y.float().mean().item():.3e}", flush=True)


if __name__ == "__main__":
    main()
