"""Train on samples that each take 20 ms to load, without work for a processor: sleeping_loader.py
NUM_WORKERS.

Workers do not slow each other down, so NUM_WORKERS times as many workers load as many times as many samples.
"""

import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset

LOAD_S, STEP_S = 0.02, 0.01


class Sleeping(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        time.sleep(LOAD_S)
        return torch.randn(16)


def main():
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for batch in DataLoader(Sleeping(), batch_size=16, num_workers=int(sys.argv[1]), shuffle=True):
        time.sleep(STEP_S)
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
