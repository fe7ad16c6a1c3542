"""Reads its windows in the training process, and its scores one by one with .item() (CUDA only)."""

import loop
import series
import torch
from loader_bound import StoredSeries
from torch.nn import functional as F
from torch.utils.data import DataLoader


def main() -> None:
    args = loop.parser().parse_args()
    size = series.SIZES[args.device]
    half_s = loop.on_top_s(args.dose or 30, series.step_s(size, args.device)) / 2
    tried = torch.randn(200, device="cuda")
    item_s = loop.seconds_of(lambda: [value.item() for value in tried], "cuda") / len(tried)
    num = max(1, round(half_s / item_s))
    workers = 0 if args.dose else 4
    loader = DataLoader(
        StoredSeries(size, half_s / size.batch),
        size.batch,
        num_workers=workers,
        pin_memory=True,
        persistent_workers=workers > 0,
    )
    net = series.Net(size).to(args.device)
    optimizer = series.sgd(net, args.device)
    seen: list[object] = []
    for _, (windows, classes) in zip(loop.steps(args.steps, args.device), loader, strict=False):
        on_device = windows.to(args.device, non_blocking=True)
        wanted = classes.to(args.device, non_blocking=True)
        with series.autocast(args.device):
            scores = net(on_device)
            loss = F.cross_entropy(scores, wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found = torch.cat([scores.detach().flatten(), scores.detach().softmax(-1).flatten()])[:num]
        seen = [value.item() for value in found] if args.dose else [found.mean()]
    assert seen


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
