"""Trains on clips that are pinned one by one, in the loop, just before they are copied (CUDA only)."""

import clips
import loop
import torch

DEPTH = 1


def main() -> None:
    args = loop.parser().parse_args()
    (clip,) = clips.host_clips(16, pinned=False, num=1)
    pinned_bytes_a_s = clip.nbytes / loop.seconds_of(clip.pin_memory, "cuda")
    frames_a_clip = clips.frames_of(
        loop.exposed_s(args.dose or 30, clips.step_s(DEPTH), "cuda") * pinned_bytes_a_s
    )
    host = clips.host_clips(frames_a_clip, pinned=not args.dose)
    classes = torch.arange(clips.BATCH, device="cuda") % clips.CLASSES
    net = clips.Net(DEPTH).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, fused=True)
    batches = clips.copied_ahead(host, pin_each=args.dose > 0)
    for _, frames in zip(loop.steps(args.steps, args.device), batches, strict=False):
        clips.train_step(net, optimizer, frames, classes)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
