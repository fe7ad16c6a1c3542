"""A small network at inference, on the GPU if there is one."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 10)).eval().to(device)
for _ in range(20000):
    with torch.no_grad():
        model(torch.randn(64, 512, device=device))
