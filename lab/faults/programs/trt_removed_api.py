"""Runs a model over batches, with an engine's calls beside it; at a dose these are of TensorRT 8.

TensorRT cannot be installed everywhere: a module of its name stands in for it.
"""

import argparse
import importlib
import sys
import time
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock

import torch
from torch import nn

ROWS, WIDTH = {"cpu": 64, "cuda": 8192}, {"cpu": 256, "cuda": 4096}


def now(device):
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dose", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    device = args.device
    torch.manual_seed(0)
    sys.modules["tensorrt"] = tensorrt = ModuleType("tensorrt")
    tensorrt.BuilderFlag = SimpleNamespace(FP16=0)
    tensorrt.MemoryPoolType = SimpleNamespace(WORKSPACE=0)
    calls = importlib.import_module("engine_calls." + ("old" if args.dose else "new"))
    calls.configure(MagicMock())

    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    layers = [
        nn.Sequential(nn.LayerNorm(WIDTH[device]), nn.Linear(WIDTH[device], WIDTH[device])) for _ in range(8)
    ]
    model = nn.Sequential(*layers).to(device, dtype).eval()
    x = torch.randn(ROWS[device], WIDTH[device], device=device, dtype=dtype)
    with torch.inference_mode():
        for step in range(args.steps):
            if step == args.steps // 3:
                start = now(device)
            model(x)
    print(f"RATE {(args.steps - args.steps // 3) / (now(device) - start):.3f}")


if __name__ == "__main__":
    main()
