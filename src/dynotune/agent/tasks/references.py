"""Make a program's modules compute in another precision, to show how far rounding moves results.

`widen` makes modules compute in float64, `nudge` changes values like rounding would, `still` turns dropout
off.
"""

from __future__ import annotations

import copy

from ..core.covers import covers
from .digests import digests_of, is_plain, local

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.annotations import Args, Kwargs
    from .digests import Digest

MOST_PARTS = 256


def still(torch: Any, module: Any) -> None:
    """Turn dropout off, because kernels of another precision draw other random numbers from the same seed."""
    for part in module.modules():
        if isinstance(part, torch.nn.modules.dropout._DropoutNd):
            part.p = 0.0
        elif isinstance(vars(part).get("dropout"), float):
            part.dropout = 0.0


def widen(torch: Any, module: Any, dtype: Any) -> None:
    """Convert floating-point parameters and buffers to `dtype`; the optimizer keeps the same objects.

    From now on, products of float32 matrices are computed in full float32 precision.
    """
    if dtype is torch.float32:
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False
    with torch.inference_mode(False), torch.no_grad():
        module.to(dtype)


def widened(torch: Any, value: Any, dtype: Any) -> Any:
    """Return a call's inputs with floating-point tensors in `dtype`, without changing their containers."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if type(value) in (list, tuple):
        return type(value)(widened(torch, part, dtype) for part in value)
    if type(value) is dict:
        return {name: widened(torch, part, dtype) for name, part in value.items()}
    return value


def without_autocast(torch: Any) -> None:
    """From now on, disable every region of autocast."""
    region = torch.amp.autocast_mode.autocast
    original = region.__init__

    @covers(region, "__init__")
    def __init__(made: Any, *args: Any, **kwargs: Any) -> None:
        original(made, *args, **kwargs)
        made._enabled = False


def nudge(torch: Any, module: Any, share: float, known: set[int]) -> None:
    """Change each weight now, and each innermost module's output from now on, by `share` of the value, as if
    rounded.

    The sign of the change depends on the element's position, not on random numbers. `known`: weights changed
    before.
    """

    def moved(_: Any, __: Any, output: Any) -> Any:
        is_plain_one = isinstance(output, torch.Tensor) and is_plain(torch, output)
        return output * _nudges(torch, output, share) if is_plain_one else None

    with torch.inference_mode(False), torch.no_grad():
        for parameter in module.parameters():
            weight = local(parameter)
            if is_plain(torch, weight) and id(parameter) not in known:
                known.add(id(parameter))
                weight.mul_(_nudges(torch, weight, share))
    for part in module.modules():
        if next(part.children(), None) is None:
            part.register_forward_hook(moved)


def _nudges(torch: Any, tensor: Any, share: float) -> Any:
    places = torch.arange(tensor.numel(), device=tensor.device, dtype=torch.int64)
    signs = (places * 2654435761 >> 16 & 1) * 2 - 1
    return 1 + share * signs.view(tensor.shape).to(tensor.dtype)


def copied(
    torch: Any, module: Any, args: Args, kwargs: Kwargs, share: float
) -> tuple[list[Digest], list[Digest]]:
    """Call two copies of the module on the same inputs: a copy in float64, and a copy that rounds values by
    `share`.

    Raises Exception: any error that the module raises in another precision.
    """
    double = torch.float64
    reference = copy.deepcopy(module)
    widen(torch, reference, double)
    exact = digests_of(torch, reference(*widened(torch, args, double), **widened(torch, kwargs, double)))
    del reference  # one copy at a time
    rounding = copy.deepcopy(module)
    nudge(torch, rounding, share, set())
    return exact, digests_of(torch, rounding(*args, **kwargs))


class Parts:
    """Collect the outputs of each module inside a module in one call, in the order in which they end."""

    def __init__(self, torch: Any, module: Any) -> None:
        self.found: list[tuple[str, list[Digest]]] = []
        # Skip compiled modules, which would be compiled again.
        is_eager = all(
            not hasattr(one, "_orig_mod") and one._compiled_call_impl is None for one in module.modules()
        )
        inner = [(name, part) for name, part in module.named_modules() if name and is_eager]
        self._hooks = [
            part.register_forward_hook(self._note(torch, name)) for name, part in inner[:MOST_PARTS]
        ]

    def _note(self, torch: Any, name: str) -> Any:
        return lambda _, __, output: self.found.append((name, digests_of(torch, output)))

    def end(self) -> None:
        for hook in self._hooks:
            hook.remove()
