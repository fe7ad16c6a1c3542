"""Makes a program's modules compute otherwise, to say how far rounding moves results.

`widen` has them compute in float64, `nudge` as roughly as a promised number of bits does, `still` without dropout.
"""

from __future__ import annotations

import copy

from ..core.annotations import Any, Args, Kwargs
from ..core.covers import covers
from .digests import Digest, digests_of, is_plain, local

MOST_PARTS = 256


def still(torch: Any, module: Any) -> None:
    """Turn dropout off: kernels of another precision draw other random numbers from the same seed."""
    for part in module.modules():
        if isinstance(part, torch.nn.modules.dropout._DropoutNd):
            part.p = 0.0
        elif isinstance(vars(part).get("dropout"), float):
            part.dropout = 0.0


def widen(torch: Any, module: Any, dtype: Any) -> None:
    """Let parameters and buffers of floating point be of `dtype`; the optimizer's stay the same objects.

    Products of float32 are such from here on.
    """
    if dtype is torch.float32:
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False
    with torch.inference_mode(False), torch.no_grad():
        module.to(dtype)


def widened(torch: Any, value: Any, dtype: Any) -> Any:
    """Return a call's inputs with floating-point tensors in `dtype`; their containers stay as they are."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if type(value) in (list, tuple):
        return type(value)(widened(torch, part, dtype) for part in value)
    if type(value) is dict:
        return {name: widened(torch, part, dtype) for name, part in value.items()}
    return value


def without_autocast(torch: Any) -> None:
    """Keep every region of autocast from doing anything from here on."""
    region = torch.amp.autocast_mode.autocast
    original = region.__init__

    @covers(region, "__init__")
    def __init__(made: Any, *args: Any, **kwargs: Any) -> None:
        original(made, *args, **kwargs)
        made._enabled = False


def nudge(torch: Any, module: Any, share: float, known: set[int]) -> None:
    """Move each weight by `share` of itself, and from here on what each innermost module gives, as if rounded.

    Up or down by the place of an element: nothing is drawn. `known`: weights that are moved already.
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


def copied(torch: Any, module: Any, args: Args, kwargs: Kwargs, share: float) -> tuple[list[Digest], list[Digest]]:
    """Call a copy of the module in float64, and one that rounds by `share`, on the same inputs.

    Raises Exception: whatever the module raises in another precision.
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
    """Outputs of each module inside of one in a call, in the order in which they end."""

    def __init__(self, torch: Any, module: Any) -> None:
        self.found: list[tuple[str, list[Digest]]] = []
        # One that is compiled would be compiled anew.
        is_eager = all(not hasattr(one, "_orig_mod") and one._compiled_call_impl is None for one in module.modules())
        inner = [(name, part) for name, part in module.named_modules() if name and is_eager]
        self._hooks = [part.register_forward_hook(self._note(torch, name)) for name, part in inner[:MOST_PARTS]]

    def _note(self, torch: Any, name: str) -> Any:
        return lambda _, __, output: self.found.append((name, digests_of(torch, output)))

    def end(self) -> None:
        for hook in self._hooks:
            hook.remove()
