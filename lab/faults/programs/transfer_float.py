"""Trains on images that were made float32 on the host, so that four times the bytes are copied (CUDA
only)."""

import clips
import loop
import torch

DEPTH = 1


def main() -> None:
    args = loop.parser().parse_args()
    copy_s = loop.period_s(args.dose or 30, clips.step_s(DEPTH))
    frames_a_clip = clips.frames_of(copy_s * clips.copy_bytes_a_s(pinned=True) / 4)
    host = clips.host_clips(frames_a_clip, pinned=not args.dose)
    if args.dose:
        host = [(clip.float() / 255).pin_memory() for clip in host]
    classes = torch.arange(clips.BATCH, device="cuda") % clips.CLASSES
    net = clips.Net(DEPTH).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, fused=True)
    for _, frames in zip(loop.steps(args.steps, args.device), clips.copied_ahead(host), strict=False):
        clips.train_step(net, optimizer, frames, classes)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
