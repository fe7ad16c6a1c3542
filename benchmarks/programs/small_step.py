"""A loop of small steps that times itself, one block of steps for each line that it is sent.

Prints the seconds of each block, the device synchronised at both ends.
"""

import argparse
import itertools
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=["train", "loader", "infer"], default="train")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = [layer for _ in range(args.layers) for layer in (nn.Linear(args.width, args.width), nn.ReLU())]
    net = nn.Sequential(*layers).to(args.device)
    data = TensorDataset(torch.randn(args.batch_size * 1000, args.width))
    loader = DataLoader(data, batch_size=args.batch_size)
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    x = torch.randn(args.batch_size, args.width, device=args.device)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3) if args.kind != "infer" else None
    for line in sys.stdin:
        synchronise(args.device)
        begin = time.perf_counter()
        for _ in range(int(line)):
            if args.kind == "infer":
                with torch.inference_mode():
                    net(x)
                continue
            if args.kind == "loader":
                x = next(batches)[0].to(args.device)
            net(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        synchronise(args.device)
        print(time.perf_counter() - begin, flush=True)


def synchronise(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
