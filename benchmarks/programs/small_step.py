"""A loop of small steps that times itself with the agent's covers on and off, in blocks that take turns.

Run under the agent. Prints one line of JSON a pair of blocks: seconds a step with them and without. With no
pairs it wants no agent and prints the seconds of a step. Started as a rank, it exchanges gradients with the
others, all ranks switch at the same step, and the first one prints.
"""

import argparse
import importlib
import itertools
import json
import os
import random
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

# Changing a class empties the interpreter's caches; the first steps of a block fill them again.
UNTIMED_STEPS = 30
ITERATOR = torch.utils.data.dataloader._BaseDataLoaderIter


class Covers:
    """What the agent has put around this program's objects, to be taken off and put back."""

    def __init__(self, net: nn.Module) -> None:
        optimizers = importlib.import_module("torch.optim.optimizer")
        self._hooks = [optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks]
        self._saved_hooks = [dict(hooks) for hooks in self._hooks]
        self._next = ITERATOR.__next__
        self._class = type(net)
        self._call = self._class.__dict__.get("__call__")

    def on(self) -> None:
        for hooks, saved in zip(self._hooks, self._saved_hooks, strict=True):
            hooks.update(saved)
        ITERATOR.__next__ = self._next
        if self._call is not None:
            self._class.__call__ = self._call

    def off(self) -> None:
        for hooks in self._hooks:
            hooks.clear()
        ITERATOR.__next__ = self._next.__wrapped__
        if "__call__" in self._class.__dict__:
            del self._class.__call__


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=["train", "loader", "infer"], default="train")
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--block-s", type=float, default=0.03)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if is_rank := "RANK" in os.environ:
        torch.distributed.init_process_group("gloo" if args.device == "cpu" else "nccl")
        if args.device != "cpu":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    net, run = build(args)
    told = torch.tensor(
        [min(run(100) for _ in range(5))], dtype=torch.float64, device=args.device
    )  # the step is found
    if is_rank:
        torch.distributed.broadcast(told, 0)
    step_s, prints = told.item(), os.environ.get("RANK", "0") == "0"
    if not args.pairs:
        if prints:
            print(step_s)
        return
    covers = Covers(net)
    steps = max(10, round(args.block_s / step_s))
    draw = random.Random(0)
    for _ in range(args.pairs):
        values = {}
        for name in draw.sample(["on", "off"], 2):
            getattr(covers, name)()
            run(UNTIMED_STEPS)
            values[name] = run(steps)
        if prints:
            print(json.dumps(values), flush=True)
    covers.on()
    if is_rank:
        torch.distributed.destroy_process_group()


def build(args: argparse.Namespace):
    """The network, and a function that runs some steps of it and gives the seconds of one."""
    layers = [layer for _ in range(args.layers) for layer in (nn.Linear(64, 64), nn.ReLU())]
    net = nn.Sequential(*layers).to(args.device)
    if torch.distributed.is_initialized():
        net = nn.parallel.DistributedDataParallel(net)
    loader = DataLoader(TensorDataset(torch.randn(16 * 1000, 64)), batch_size=16)
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    x = torch.randn(16, 64, device=args.device)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3) if args.kind != "infer" else None

    def step() -> None:
        if optimizer is None:
            with torch.inference_mode():
                net(x)
            return
        inputs = next(batches)[0].to(args.device) if args.kind == "loader" else x
        net(inputs).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return net, lambda num: timed(step, num, args.device)


def timed(step, num: int, device: str) -> float:
    """Seconds a step over `num` steps."""
    synchronise(device)
    begin = time.perf_counter()
    for _ in range(num):
        step()
    synchronise(device)
    return (time.perf_counter() - begin) / num


def synchronise(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
