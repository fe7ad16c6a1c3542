"""Workers of loaders run modules too: transforms are often built as such. Their calls are no steps of the
program."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Transformed(Dataset):
    def __init__(self):
        self.transform = nn.Sequential(nn.Identity(), nn.Flatten(0))

    def __len__(self):
        return 96

    def __getitem__(self, index):
        return self.transform(torch.full((2, 2), float(index)))


if __name__ == "__main__":
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    steps = samples = 0
    for context in ("fork", "spawn"):
        for x in DataLoader(Transformed(), batch_size=8, num_workers=1, multiprocessing_context=context):
            optimizer.zero_grad()
            net(x).mean().backward()
            optimizer.step()
            steps, samples = steps + 1, samples + len(x)
    print("TRUTH", steps, samples)
