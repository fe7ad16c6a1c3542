"""An epoch each with loader workers by fork, spawn and forkserver; the workers run modules, as transforms
often are."""

import torch
from told import tell
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Transformed(Dataset):
    def __init__(self):
        self.transform = nn.Sequential(nn.Identity(), nn.Flatten(0))

    def __len__(self):
        return 96

    def __getitem__(self, index):
        return self.transform(torch.full((2, 4), float(index)))


if __name__ == "__main__":
    net = nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(net.parameters())
    steps = samples = 0
    for context in ("fork", "spawn", "forkserver"):
        loader = DataLoader(Transformed(), batch_size=8, num_workers=2, multiprocessing_context=context)
        for x in loader:
            optimizer.zero_grad()
            net(x).mean().backward()
            optimizer.step()
            steps, samples = steps + 1, samples + len(x)
    tell(steps, samples, loader, optimizer)
