"""Inference over a loader whose last batch is smaller."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(203, 8)), batch_size=8)
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).eval()
num_steps = num_samples = 0
with torch.inference_mode():
    for (x,) in loader:
        net(x)
        num_steps += 1
        num_samples += len(x)
print("TRUTH", num_steps, num_samples)
