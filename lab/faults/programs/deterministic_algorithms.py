"""Trains a graph network that sums messages by index; with a dose only deterministic algorithms are
allowed."""

import argparse
import time

import torch
from torch import nn

NODES = 131_072
EDGES = 524_288
WIDTH = 256
HIDDEN = 4096
LAYERS = 4


def now(device):
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH))

    def forward(self, nodes, source, target):
        sums = torch.zeros_like(nodes).index_add(0, target, nodes.index_select(0, source))
        return nodes + self.mlp(sums).float()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dose", type=int, default=0, help="any dose is the whole fault")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    device = args.device
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(args.dose > 0, warn_only=True)

    layers = nn.ModuleList([Layer() for _ in range(LAYERS)]).to(device)
    optimizer = torch.optim.AdamW(layers.parameters(), lr=1e-4, fused=True)
    nodes = torch.randn(NODES, WIDTH, device=device)
    source = torch.randint(NODES, (EDGES,), device=device)
    target = torch.randint(NODES, (EDGES,), device=device)

    for step in range(args.steps):
        if step == args.steps // 3:
            start = now(device)
        with torch.autocast(device, torch.bfloat16):
            states = nodes
            for layer in layers:
                states = layer(states, source, target)
            loss = states.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"RATE {(args.steps - args.steps // 3) / (now(device) - start):.3f}")


if __name__ == "__main__":
    main()
