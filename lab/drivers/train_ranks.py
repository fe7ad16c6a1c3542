"""Two ranks with gloo and DistributedDataParallel: under torchrun, or started by torch.multiprocessing
(`spawn`)."""

import sys
import tempfile

import torch
import torch.distributed as dist
from told import end, tell
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def train(rank=-1, store="env://"):
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=-1 if rank < 0 else 2)
    data = TensorDataset(torch.randn(160, 8))
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
    net = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    steps = samples = 0
    for _ in range(3):
        for (x,) in loader:
            optimizer.zero_grad()
            net(x).mean().backward()
            optimizer.step()
            steps, samples = steps + 1, samples + len(x)
    tell(steps, samples, loader, optimizer)
    end()


if __name__ == "__main__":
    if len(sys.argv) == 1:
        train()
    else:
        with tempfile.TemporaryDirectory() as folder:
            store = f"file://{folder}/store"
            torch.multiprocessing.start_processes(train, (store,), nprocs=2, start_method=sys.argv[1])
