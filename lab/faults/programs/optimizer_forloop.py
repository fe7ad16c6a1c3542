"""Trains a network with hundreds of small scale vectors, a share of which the optimizer updates one by
one."""

import itertools

import loop
import series
import torch
from torch import Tensor, nn

SCALES = {"cpu": 600, "cuda": 600}
# Seconds that Adam takes for a small parameter, and autograd for it, in seconds of Adam's operations on bare
# tensors.
ADAM, AUTOGRAD = 1.15, 0.9


class ScaledNet(series.Net):
    """The network, its input scaled by the mean of many learned vectors."""

    def __init__(self, size: series.Size, num: int) -> None:
        super().__init__(size)
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(series.CHANNELS)) for _ in range(num))

    def forward(self, windows: Tensor) -> Tensor:
        return super().forward(windows * torch.stack(list(self.scales)).mean(0))


def update_s(device: str) -> float:
    """Seconds of what Adam does to one small tensor."""
    value, grad, mean, square, most = (torch.ones(series.CHANNELS, device=device) for _ in range(5))
    count = torch.zeros(())

    def update() -> None:
        count.add_(1)
        mean.lerp_(grad.add(value, alpha=1e-4), 0.1)
        torch.maximum(most, square, out=most)
        square.mul_(0.999).addcmul_(grad, grad, value=0.001)
        correction = 1 - 0.9 ** count.item()
        value.addcdiv_(mean, (most.sqrt() / correction).add_(1e-8), value=-1e-3)

    return loop.seconds_of(lambda: [update() for _ in range(50)], device, 0.2) / 50


def adam(net: ScaledNet, num_one_by_one: int) -> torch.optim.Optimizer:
    """Adam with the fused update, but for that many of the scales."""
    scales = list(net.scales)
    fused = [*net.layers.parameters(), *net.head.parameters(), *scales[num_one_by_one:]]
    groups = [{"params": fused, "fused": True}]
    if num_one_by_one:
        groups.append({"params": scales[:num_one_by_one], "fused": False, "foreach": False})
    return torch.optim.Adam(groups, lr=1e-4, weight_decay=1e-4, amsgrad=True)


def main() -> None:
    args = loop.parser().parse_args()
    size = series.SIZES[args.device]
    count = SCALES[args.device]
    work_s, scale_s = series.step_s(size, args.device), update_s(args.device)
    autograd_s = count * scale_s * AUTOGRAD
    if args.device == "cpu":
        wanted_s = loop.on_top_s(args.dose, work_s + autograd_s)
    else:
        wanted_s = loop.exposed_s(args.dose, work_s, args.device, host_s=0.002 + autograd_s / 3)
    net = ScaledNet(size, count).to(args.device)
    optimizer = adam(net, min(count, round(wanted_s / (scale_s * ADAM))))
    batches = itertools.cycle(series.on_device(size, args.device))
    for _, (windows, classes) in zip(loop.steps(args.steps, args.device), batches, strict=False):
        series.train_step(net, optimizer, windows, classes, args.device)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
