"""Inference in a bare loop."""

import torch
from torch import nn

net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).eval()
num_steps = num_samples = 0
with torch.no_grad():
    for _ in range(50):
        net(torch.randn(3, 8))
        num_steps += 1
        num_samples += 3
print("TRUTH", num_steps, num_samples)
