"""Each batch is used when the next one has been drawn, as accelerate's loaders do; the last of an epoch
without."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def one_ahead(loader):
    batches = iter(loader)
    batch = next(batches)
    for following in batches:
        yield batch
        batch = following
    yield batch


net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(30, 4)), batch_size=4)
steps = samples = 0
for _ in range(3):
    for (x,) in one_ahead(loader):
        optimizer.zero_grad()
        net(x).mean().backward()
        optimizer.step()
        steps, samples = steps + 1, samples + len(x)
print("TRUTH", steps, samples)
