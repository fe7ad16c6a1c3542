"""Looks at the data, then trains three models one after another, all of them kept, each with a loop of its
own."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(40, 4))
mean = torch.stack([x.mean(0) for (x,) in DataLoader(data, batch_size=5)]).mean(0)
kept = []
steps = samples = 0
for batch_size, per_step in ((4, 1), (5, 1), (2, 2)):
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    kept.append((net, optimizer))
    for _ in range(2):
        for number, (x,) in enumerate(DataLoader(data, batch_size, shuffle=True), 1):
            (net(x - mean).mean() / per_step).backward()
            samples += len(x)
            if number % per_step == 0:
                optimizer.step()
                optimizer.zero_grad()
                steps += 1
print("TRUTH", steps, samples)
