"""A dataset and a loader of its own for each epoch, as in cross-validation, and an evaluation in between."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

data = TensorDataset(torch.randn(60, 4))
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
steps = samples = 0
for _fold in range(3):
    chosen = torch.randperm(60)
    for (x,) in DataLoader(Subset(data, chosen[:40].tolist()), batch_size=4):
        optimizer.zero_grad()
        net(x).mean().backward()
        optimizer.step()
        steps, samples = steps + 1, samples + len(x)
    with torch.no_grad():
        for (x,) in DataLoader(Subset(data, chosen[40:].tolist()), batch_size=4):
            net(x)
print("TRUTH", steps, samples)
