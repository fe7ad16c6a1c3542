"""Trains on clips from slow storage that the loader leaves in pageable memory (CUDA only).

While the program waits for storage the copies cost it nothing more: they show once storage is fast.
"""

import time

import clips
import loop
import torch
from pin_memory_off import DEPTH, WORKERS, Clips
from torch import Tensor
from torch.utils.data import DataLoader

# Of a step, that copying from pageable memory takes on top.
COPYING_PERCENT = 20


class StoredClips(Clips):
    def __init__(self, frames: int, latency_s: float) -> None:
        super().__init__(frames)
        self.latency_s = latency_s

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        time.sleep(self.latency_s)
        return super().__getitem__(index)


def main() -> None:
    args = loop.parser().parse_args()
    work_s = clips.step_s(DEPTH)
    frames_a_clip = clips.frames_of(
        loop.on_top_s(COPYING_PERCENT, work_s) * clips.copy_bytes_a_s(pinned=False)
    )
    wait_s = loop.period_s(args.dose, work_s) * WORKERS if args.dose else 0.0
    loader = DataLoader(
        StoredClips(frames_a_clip, wait_s),
        batch_size=None,
        num_workers=WORKERS,
        pin_memory=not args.dose,
        persistent_workers=True,
    )
    net = clips.Net(DEPTH).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, fused=True)
    for _, (frames, classes) in zip(loop.steps(args.steps, args.device), loader, strict=False):
        clips.train_step(net, optimizer, frames.cuda(non_blocking=True), classes.cuda(non_blocking=True))


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
