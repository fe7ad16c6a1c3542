"""Gradients accumulated over 4 batches."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(320, 8), torch.randint(0, 2, (320,))), batch_size=4)
net = nn.Linear(8, 2)
optimizer = torch.optim.AdamW(net.parameters())
num_steps = num_samples = 0
for index, (x, y) in enumerate(loader):
    (nn.functional.cross_entropy(net(x), y) / 4).backward()
    num_samples += len(x)
    if index % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
        num_steps += 1
print("TRUTH", num_steps, num_samples)
