"""Trains on large pinned clips that are copied on the stream that computes, one after the other (CUDA
only)."""

import clips
import loop
import torch

DEPTH = 1


def main() -> None:
    args = loop.parser().parse_args()
    copy_s = loop.on_top_s(args.dose or 30, clips.step_s(DEPTH))
    host = clips.host_clips(clips.frames_of(copy_s * clips.copy_bytes_a_s(pinned=True)), pinned=True)
    batches = clips.copied_in_line(host) if args.dose else clips.copied_ahead(host)
    classes = torch.arange(clips.BATCH, device="cuda") % clips.CLASSES
    net = clips.Net(DEPTH).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, fused=True)
    for _, frames in zip(loop.steps(args.steps, args.device), batches, strict=False):
        clips.train_step(net, optimizer, frames, classes)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
