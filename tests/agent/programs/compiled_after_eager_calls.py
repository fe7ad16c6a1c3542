"""Inference compiled, in place and in a function, when its step has long been found; recompiling is an
error."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(x).relu()


net = Net().eval()
infer = torch.compile(lambda x: net(x) + 1, fullgraph=True, backend="aot_eager")
num_steps = num_samples = 0
with torch.no_grad():
    for index in range(120):
        if index == 40:
            # A graph that looks through the module's call; it makes no step.
            infer(torch.ones(5, 8))
        if index == 60:
            net.compile(fullgraph=True, backend="aot_eager")
        if index == 80:
            torch._dynamo.config.error_on_recompile = True
        net(torch.randn(5, 8))
        num_steps += 1
        num_samples += 5
        if 40 <= index < 60:
            infer(torch.ones(5, 8))
print("TRUTH", num_steps, num_samples)
