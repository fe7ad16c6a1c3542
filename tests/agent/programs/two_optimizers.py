"""Two optimizers that step one after the other."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(200, 8), torch.randint(0, 2, (200,))), batch_size=8)
body, head = nn.Linear(8, 8), nn.Linear(8, 2)
optimizers = [torch.optim.SGD(body.parameters(), lr=0.1), torch.optim.Adam(head.parameters())]
num_steps = num_samples = 0
for x, y in loader:
    nn.functional.cross_entropy(head(body(x).relu()), y).backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    num_steps += 1
    num_samples += len(x)
print("TRUTH", num_steps, num_samples)
