"""Trains on windows of varying length, and keeps a piece of each step for a while (CUDA only).

The pieces come to lie inside the large blocks that the steps leave, which then no longer serve a longer step.
"""

import random

import loop
import series
import torch

KEPT = 400
PIECE = (1024, 1024)


def main() -> None:
    args = loop.parser().parse_args()
    size = series.SIZES[args.device]
    net = series.Net(size).to(args.device)
    optimizer = series.sgd(net, args.device)
    draw = random.Random(0)
    longest = torch.randn(size.batch, size.length, series.CHANNELS, device=args.device)
    classes = torch.randint(series.CLASSES, (size.batch,), device=args.device)
    bank = torch.zeros(KEPT, *PIECE, dtype=torch.bfloat16, device=args.device)
    pieces: list[torch.Tensor] = list(bank.unbind())
    if args.dose:
        del bank
        pieces = []
    for _ in loop.steps(args.steps, args.device):
        windows = longest[:, : draw.randint(size.length // 4, size.length)].contiguous()
        with series.autocast(args.device):
            hidden = net.layers(windows)
            loss = torch.nn.functional.cross_entropy(net.head(hidden).float().mean(1), classes)
        piece = hidden.detach().flatten(0, 1)[: PIECE[0], : PIECE[1]]
        if not args.dose:
            pieces[draw.randrange(KEPT)].copy_(piece)
        elif len(pieces) < KEPT:
            pieces.append(piece.clone())
        else:
            pieces[draw.randrange(KEPT)] = piece.clone()
        del hidden, piece
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
