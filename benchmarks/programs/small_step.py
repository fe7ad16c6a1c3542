"""A loop that times itself: seconds a step over many steps, the device synchronised at both ends."""

import argparse
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
    parser.add_argument("--warmup", type=int, default=400)
    parser.add_argument("--steps", type=int, default=2000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = [layer for _ in range(args.layers) for layer in (nn.Linear(args.width, args.width), nn.ReLU())]
    net = nn.Sequential(*layers).to(args.device)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3) if args.kind != "infer" else None
    num = args.warmup + args.steps
    x = torch.randn(args.batch_size, args.width)
    batches = iter(())
    if args.kind == "loader":
        batches = iter(DataLoader(TensorDataset(x.repeat(num, 1)), batch_size=args.batch_size))
    x = x.to(args.device)
    begin = 0.0
    for index in range(num):
        if index == args.warmup:
            if args.device != "cpu":
                torch.cuda.synchronize()
            begin = time.perf_counter()
        if args.kind == "infer":
            with torch.inference_mode():
                net(x)
            continue
        if args.kind == "loader":
            x = next(batches)[0].to(args.device)
        net(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    if args.device != "cpu":
        torch.cuda.synchronize()
    print((time.perf_counter() - begin) / args.steps)


if __name__ == "__main__":
    main()
