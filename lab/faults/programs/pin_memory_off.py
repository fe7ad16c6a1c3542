"""Trains on clips from a loader that leaves its batches in pageable memory (CUDA only)."""

import clips
import loop
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

WORKERS = 8
DEPTH = 1


class Clips(Dataset):
    """Item `i` is a whole batch of clips."""

    def __init__(self, frames: int) -> None:
        self.stored = clips.host_clips(frames, pinned=False)

    def __len__(self) -> int:
        return 10_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.stored[index % len(self.stored)], torch.arange(clips.BATCH) % clips.CLASSES


def main() -> None:
    args = loop.parser().parse_args()
    copy_s = loop.on_top_s(args.dose or 30, clips.step_s(DEPTH))
    dataset = Clips(clips.frames_of(copy_s * clips.copy_bytes_a_s(pinned=False)))
    loader = DataLoader(
        dataset, batch_size=None, num_workers=WORKERS, pin_memory=not args.dose, persistent_workers=True
    )
    net = clips.Net(DEPTH).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, fused=True)
    for _, (frames, classes) in zip(loop.steps(args.steps, args.device), loader, strict=False):
        clips.train_step(net, optimizer, frames.cuda(non_blocking=True), classes.cuda(non_blocking=True))


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
