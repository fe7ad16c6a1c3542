"""Inference compiled with CUDA graphs underneath; recompilations are errors."""

import torch
from torch import nn

net = torch.compile(
    nn.Sequential(nn.Linear(64, 64), nn.ReLU()).cuda().eval(), mode="reduce-overhead", fullgraph=True
)
with torch.no_grad():
    for index in range(40):
        if index == 3:
            torch.compiler.set_stance("fail_on_recompile")
        net(torch.randn(5, 64, device="cuda"))
print("TRUTH", 40, 200)
