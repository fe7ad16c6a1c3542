"""A loop without a loader, over batches of a given size."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--b", type=int, default=8)
parser.add_argument("--steps", type=int, default=2000)
args = parser.parse_args()
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(args.steps):
    x = torch.randn(args.b, 256)
    y = torch.randint(0, 10, (args.b,))
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(step, loss.item())
