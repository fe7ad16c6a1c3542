"""Denoising auto-encoder on wide transaction features (tabular anomaly detection)."""

import os
import sys

if "--fixed" not in sys.argv:
    os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"

import argparse
import time

import torch
import torch.nn as nn

parser = argparse.ArgumentParser()
parser.add_argument("--fixed", action="store_true")
parser.add_argument("--tiny", action="store_true")
parser.add_argument("--steps", type=int, default=210)
args = parser.parse_args()

device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
torch.manual_seed(99)
torch.set_float32_matmul_precision("high")

features, hidden, rows, batch = (32, 64, 256, 32) if args.tiny else (512, 8192, 400_000, 24_576)
table = torch.randn(rows, features, device=device, dtype=torch.bfloat16)


def mlp(*sizes):
    layers = []
    for a, b in zip(sizes[:-2], sizes[1:-1]):
        layers += [nn.Linear(a, b, bias=False), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1]))


model = mlp(features, hidden, hidden, hidden, hidden, features).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def step(k):
    start = (k * batch) % (rows - batch)
    clean = table[start : start + batch]
    noisy = clean * (torch.rand_like(clean) > 0.15)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        rebuilt = model(noisy)
    loss = (rebuilt - clean).square().mean(dtype=torch.float32)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def synchronize():
    if device.type == "cuda":
        torch.cuda.synchronize()


warm = args.steps // 3
for k in range(warm):
    step(k)
synchronize()
t0 = time.perf_counter()
for k in range(warm, args.steps):
    last = step(k)
synchronize()
t1 = time.perf_counter()
print(f"reconstruction error {last.item():.4f}")
print(f"steps={args.steps} mean_step_ms={(t1 - t0) * 1e3 / (args.steps - warm):.3f}")
