"""Describe the optimizers that have stepped, and how gradients are set to zero and scaled."""

from __future__ import annotations

import importlib
import weakref

from ..core import source_location
from ..core.covers import covers, uncover
from ..core.tensors import class_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_MOST_OPTIMIZERS = 16


class Optimizers:
    """Optimizers that have stepped so far.

    Their covers are removed before the window and before a compilation.
    """

    def __init__(self) -> None:
        self._met: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._scaled: set[int] = set()
        self._covers: list[tuple[Any, str, Any]] = []
        self.zero_grad_sets_none: bool | None = None
        self.zero_grad_place = ""

    @property
    def scales(self) -> bool:
        return bool(self._scaled)

    def torch_is_here(self, torch: Any) -> None:
        optimizers: Any = importlib.import_module("torch.optim.optimizer")
        scaler = torch.amp.grad_scaler.GradScaler
        self._cover_zero_grad(optimizers.Optimizer, torch.compiler.is_compiling)
        self._cover_scaler(scaler)

    def stepped(self, optimizer: Any) -> None:
        """Note that the optimizer has just stepped.

        Called until the step is found, and later for new optimizers.
        """
        known = self._met.get(id(optimizer))
        if (known is None or known[0]() is not optimizer) and len(self._met) < _MOST_OPTIMIZERS:
            self._met[id(optimizer)] = weakref.ref(optimizer), source_location.place()

    def look_no_more(self) -> None:
        while self._covers:
            uncover(*self._covers.pop())

    def parameters(self) -> set[int]:
        alive = [optimizer for ref, _ in self._met.values() if (optimizer := ref()) is not None]
        groups = [group for optimizer in alive for group in optimizer.param_groups]
        return {id(parameter) for group in groups for parameter in group["params"]}

    def facts(self) -> list[dict[str, Any]]:
        """Return the fields of `schema.model.Optimizer`."""
        found = []
        for number, (reference, where) in self._met.items():
            optimizer = reference()
            if optimizer:
                found.append(self._describe(number, optimizer, where))
        return found

    def _describe(self, number: int, optimizer: Any, where: str) -> dict[str, Any]:
        groups = optimizer.param_groups
        first = groups[0] if groups else {}
        parameters = [parameter for group in groups for parameter in group["params"]]
        return {
            "name": class_name(optimizer),
            **{name: _truth(first.get(name)) for name in ("foreach", "fused")},
            "groups_differ": len({(group.get("foreach"), group.get("fused")) for group in groups}) > 1,
            "num_tensors": len(parameters),
            "devices": sorted({str(parameter.device) for parameter in parameters}),
            "scaled": number in self._scaled,
            "place": {"function": where},
        }

    def _cover_zero_grad(self, kind: Any, is_compiling: Callable[[], bool]) -> None:
        original = kind.zero_grad

        @covers(kind, "zero_grad")
        def zero_grad(optimizer: Any, set_to_none: bool = True) -> Any:
            if self.zero_grad_sets_none is None and not is_compiling():
                self.zero_grad_sets_none, self.zero_grad_place = bool(set_to_none), source_location.line()
                uncover(kind, "zero_grad", zero_grad)
            return original(optimizer, set_to_none)

        self._covers.append((kind, "zero_grad", zero_grad))

    def _cover_scaler(self, kind: Any) -> None:
        original = kind.step

        @covers(kind, "step")
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(scaler, "_enabled", False):
                self._scaled.add(id(getattr(optimizer, "optimizer", optimizer)))
            return original(scaler, optimizer, *args, **kwargs)

        self._covers.append((kind, "step", step))


def _truth(value: Any) -> bool | None:
    return None if value is None else bool(value)
