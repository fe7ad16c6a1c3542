"""Makes a program's modules compute otherwise, to say how far rounding moves results.

`widen` has them compute in float64, `nudge` as roughly as a promised number of bits does, `still` without dropout.
"""

from __future__ import annotations

import copy

from ..core.annotations import Any, Args, Iterator, Kwargs
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
    """Let parameters and buffers of floating point be of `dtype`; the optimizer's stay the same objects."""
    with torch.inference_mode(False), torch.no_grad():
        module.to(dtype)


def widened(torch: Any, value: Any, dtype: Any) -> Any:
    """Inputs of a call, their tensors of floating point in `dtype`; what holds them otherwise stays as it is."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if type(value) in (list, tuple):
        return type(value)(widened(torch, part, dtype) for part in value)
    if type(value) is dict:
        return {name: widened(torch, part, dtype) for name, part in value.items()}
    return value


def without_autocast(torch: Any) -> None:
    """From here on no region of autocast does anything."""
    region = torch.amp.autocast_mode.autocast
    original = region.__init__

    @covers(region, "__init__")
    def __init__(made: Any, *args: Any, **kwargs: Any) -> None:
        original(made, *args, **kwargs)
        made._enabled = False


def exactly(torch: Any) -> None:
    """Let products of float32 be products of float32."""
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False


def nudge(torch: Any, module: Any, share: float, known: set[int]) -> None:
    """Move each weight by `share` of itself, up or down by its place: nothing is drawn. `known`: moved already."""
    with torch.inference_mode(False), torch.no_grad():
        for parameter in module.parameters():
            weight = local(parameter)
            if is_plain(torch, weight) and id(parameter) not in known:
                known.add(id(parameter))
                weight.mul_(_nudges(torch, weight, share))


def nudge_outputs(torch: Any, module: Any, share: float) -> None:
    """From here on move what each innermost module gives as well, as kernels of that precision round it."""

    def moved(_: Any, __: Any, output: Any) -> Any:
        if isinstance(output, torch.Tensor) and is_plain(torch, output):
            return output * _nudges(torch, output, share)
        return None

    for part in module.modules():
        if next(part.children(), None) is None:
            part.register_forward_hook(moved)


def _nudges(torch: Any, tensor: Any, share: float) -> Any:
    places = torch.arange(tensor.numel(), device=tensor.device, dtype=torch.int64)
    signs = (places * 2654435761 >> 16 & 1) * 2 - 1
    return 1 + share * signs.view(tensor.shape).to(tensor.dtype)


def copied(torch: Any, module: Any, args: Args, kwargs: Kwargs, share: float) -> tuple[list[Digest], list[Digest]]:
    """What a copy of the module gives in float64, and one that rounds by `share`, on the same inputs.

    Raises Exception: whatever the module raises in another precision.
    """
    double = torch.float64
    reference = copy.deepcopy(module)
    widen(torch, reference, double)
    with torch.autocast(_device(module), enabled=False):
        exact = digests_of(torch, reference(*widened(torch, args, double), **widened(torch, kwargs, double)))
    rounding = reference = copy.deepcopy(module)  # one copy at a time
    nudge(torch, rounding, share, set())
    nudge_outputs(torch, rounding, share)
    return exact, digests_of(torch, rounding(*args, **kwargs))


def _device(module: Any) -> str:
    return next((parameter.device.type for parameter in module.parameters()), "cpu")


class Parts:
    """What each module inside of one gives in a call, in the order in which they end. `module` runs eagerly."""

    def __init__(self, torch: Any, module: Any) -> None:
        self._torch = torch
        self.found: list[tuple[str, list[Digest]]] = []
        self._hooks = [part.register_forward_hook(self._note(name)) for name, part in _inner(module)]

    def _note(self, name: str) -> Any:
        def note(_: Any, __: Any, output: Any) -> None:
            if len(self.found) < MOST_PARTS:
                self.found.append((name, digests_of(self._torch, output)))

        return note

    def end(self) -> None:
        for hook in self._hooks:
            hook.remove()


def _inner(module: Any) -> Iterator[tuple[str, Any]]:
    """Inner modules and their names; none of what is compiled, which would be compiled anew."""
    if any(hasattr(part, "_orig_mod") or part._compiled_call_impl is not None for part in module.modules()):
        return
    yield from ((name, part) for name, part in module.named_modules() if name)
