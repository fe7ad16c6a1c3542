"""Apply `transfer.non_blocking`: the program does not wait for copies from pinned host memory to the GPU.

Only copies from pinned memory to the GPU are changed. For unpinned memory the flag `non_blocking` does
nothing; from GPU to host it would let the program read data that has not arrived.
"""

from __future__ import annotations

from ..core.covers import covers
from ..core.errors import by_a_signal
from .site import Site, answer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..core.annotations import Answer, Args, Call, Kwargs, Planned
    from ..core.program import Program


class TransferSite(Site):
    """Cover `Tensor.to`, `Tensor.cuda` and `Tensor.copy_` while the setting acts."""

    is_switched = True

    def __init__(self, planned: list[Planned], program: Program, at_start: bool) -> None:
        super().__init__(planned, program, at_start)
        self._num_copies = 0
        self._dtype: Any = None
        self._own: dict[str, Any] = {}

    def on(self) -> None:
        torch = self.torch
        is_tracing = getattr(torch.compiler, "is_dynamo_compiling", lambda: False)
        self._dtype = torch.dtype
        for name, place in (("to", self._in_to), ("cuda", self._in_cuda), ("copy_", self._in_copy)):
            self._own[name] = torch.Tensor.__dict__.get(name)
            self._cover(torch.Tensor, name, place, is_tracing)

    def off(self) -> None:
        tensor = self.torch.Tensor
        for name, own in self._own.items():
            if own is not None:
                setattr(tensor, name, own)
            elif name in tensor.__dict__:
                delattr(tensor, name)  # the method is inherited from the C class again
        self._own = {}

    def _cover(self, kind: Any, name: str, place: Call, is_tracing: Callable[[], bool]) -> None:
        original = getattr(kind, name)

        @covers(kind, name)
        def method(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            # In a trace, this folds to the method that torch.compile knows by its name.
            if is_tracing():
                return getattr(tensor, name)(*args, **kwargs)
            try:
                args, kwargs = place(tensor, args, kwargs)
            except Exception as error:
                # For a call that torch does not accept, or a special tensor, leave the answer to torch.
                if by_a_signal(error):
                    raise
            return original(tensor, *args, **kwargs)

    def _in_to(self, tensor: Any, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        if tensor.is_cuda or not (args or "device" in kwargs or "other" in kwargs):
            return args, kwargs
        target = args[0] if args else kwargs.get("device", kwargs.get("other"))
        if isinstance(target, self._dtype) or not (_is_cuda(target) and tensor.is_pinned()):
            return args, kwargs
        # to(device, dtype, non_blocking, copy) and to(other, non_blocking, copy)
        return self._flagged(args, kwargs, 1 if hasattr(target, "is_pinned") else 2)

    def _in_cuda(self, tensor: Any, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        if tensor.is_cuda or not tensor.is_pinned():
            return args, kwargs
        return self._flagged(args, kwargs, 1)

    def _in_copy(self, tensor: Any, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        source: Any = args[0] if args else kwargs.get("src", kwargs.get("other"))
        if not tensor.is_cuda or source.is_cuda or not source.is_pinned():
            return args, kwargs
        return self._flagged(args, kwargs, 1)

    def _flagged(self, args: Args, kwargs: Kwargs, position: int) -> tuple[Args, Kwargs]:
        self._num_copies += 1
        if len(args) > position:
            return (*args[:position], self.value, *args[position + 1 :]), kwargs
        return args, {**kwargs, "non_blocking": self.value}

    def read_one(self, setting: Planned) -> Answer:
        witness = "copies from pinned memory to the GPU"
        if self._num_copies:
            return answer(setting, self.value, witness, True, "%d copies" % self._num_copies)
        detail = "the program made no such copy: loader.pin_memory=true makes its batches pinned"
        return answer(setting, None, witness, False, detail)


def _is_cuda(target: Any) -> bool:
    if isinstance(target, str):
        return target.startswith("cuda")
    if isinstance(target, int):
        return True  # an index refers to the current accelerator, and only that one has pinned memory
    return getattr(target, "type", None) == "cuda" or getattr(target, "is_cuda", False) is True
