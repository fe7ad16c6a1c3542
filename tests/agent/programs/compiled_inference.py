"""Inference of a module compiled as a whole and one compiled by its blocks, in turn; recompilations are
errors."""

import torch
from torch import nn

whole = torch.compile(nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval(), fullgraph=True, backend="aot_eager")
blocks = nn.Sequential(*[torch.compile(nn.Linear(8, 8), backend="aot_eager") for _ in range(2)]).eval()
num_steps = num_samples = 0
with torch.no_grad():
    for index in range(40):
        if index == 3:
            torch._dynamo.config.error_on_recompile = True
        blocks(whole(torch.randn(5, 8)))
        num_steps += 1
        num_samples += 5
print("TRUTH", num_steps, num_samples)
