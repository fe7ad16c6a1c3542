"""Trains a classifier that validates every tenth step, joining the outputs of a batch to those of all
before."""

import math

import loop
import torch
from torch import Tensor, nn

WIDTH, CLASSES, ROWS, EVERY, MOST = 64, 512, 64, 10, 256


def score(kept: Tensor, labels: Tensor) -> float:
    return float((kept.argmax(1) == labels[: len(kept)]).float().mean())


def validate(net: nn.Module, batches: list[Tensor], labels: Tensor) -> float:
    net.eval()
    kept = torch.empty(0, CLASSES)
    with torch.no_grad():
        for batch in batches:
            outputs = net(batch)
            kept = torch.cat([kept, outputs.cpu()])
    net.train()
    return score(kept, labels)


def main() -> None:
    args = loop.parser().parse_args()
    net = nn.Sequential(nn.Linear(WIDTH, 256), nn.ReLU(), nn.Linear(256, CLASSES)).to(args.device)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    rows = torch.randn(4 * ROWS, WIDTH, device=args.device)
    classes = torch.randint(CLASSES, (4 * ROWS,), device=args.device)

    def train_step() -> None:
        nn.functional.cross_entropy(net(rows), classes).backward()
        optimizer.step()
        optimizer.zero_grad()

    work_s = EVERY * loop.seconds_of(train_step, args.device)
    # Joining takes time in proportion to the square of the number of batches.
    labels = torch.randint(CLASSES, (MOST * ROWS,))
    batches = [torch.randn(ROWS, WIDTH, device=args.device)] * MOST
    few = batches[: MOST // 8]
    few_s = loop.seconds_of(lambda: validate(net, few, labels), args.device, 0.1)
    num = min(MOST, round(len(few) * math.sqrt(loop.on_top_s(args.dose, work_s) / few_s)))
    for step in loop.steps(args.steps, args.device):
        train_step()
        if args.dose and step % EVERY == EVERY - 1:
            validate(net, batches[:num], labels)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
