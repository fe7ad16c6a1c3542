"""Plain training over epochs, with an evaluation without gradients after each."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

train = DataLoader(
    TensorDataset(torch.randn(100, 8), torch.randint(0, 2, (100,))), batch_size=8, shuffle=True
)
val = DataLoader(TensorDataset(torch.randn(40, 8), torch.randint(0, 2, (40,))), batch_size=10)
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Sequential(nn.Linear(16, 2)))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
num_steps = num_samples = 0
for _ in range(3):
    for x, y in train:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        num_steps += 1
        num_samples += len(x)
    net.eval()
    with torch.no_grad():
        for x, _y in val:
            net(x)
    net.train()
print("TRUTH", num_steps, num_samples)
