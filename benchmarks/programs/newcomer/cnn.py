"""A convolutional network whose loader has no workers."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Data(Dataset):
    def __len__(self):
        return 6000

    def __getitem__(self, i):
        x = torch.randn(3, 64, 64)
        for _ in range(8):
            x = x.sort(-1).values
        return x, i % 10


model = nn.Sequential(
    nn.Conv2d(3, 16, 3, 2),
    nn.ReLU(),
    nn.Conv2d(16, 32, 3, 2),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(32, 10),
)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(Data(), batch_size=32, num_workers=0)
for _ in range(3):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
