"""Finds out the shapes of its layers by calling each, gradients and all, before it trains the whole; a short
run."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

layers = [nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3), nn.Tanh(), nn.Linear(3, 1)]
x = torch.randn(2, 4)
for layer in layers:
    x = layer(x)
net = nn.Sequential(*layers)
net(torch.randn(1, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for (x,) in DataLoader(TensorDataset(torch.randn(60, 4)), batch_size=5):
    optimizer.zero_grad()
    net(x).mean().backward()
    optimizer.step()
print("TRUTH", 12, 60)
