"""Apply `grad.mode`: call outermost modules without gradients."""

from __future__ import annotations

from ..core.covers import covers
from .site import Site, answer, unchanged

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.annotations import Answer, Args, Kwargs, Planned, Surroundings
    from ..core.program import Program


class GradModeSite(Site):
    """Call outermost modules without gradients, until the program makes an optimizer."""

    is_switched = True
    wants_around = True
    acts_in_calls = True

    def __init__(self, planned: list[Planned], program: Program, at_start: bool) -> None:
        super().__init__(planned, program, at_start)
        self._sees_optimizers = self._has_optimizer = self._has_acted = False

    def cannot(self) -> str:
        if self._has_optimizer or self.program.steps.optimizers:
            return "the program has an optimizer, so it needs gradients"
        return ""

    def on(self) -> None:
        if not self._sees_optimizers:
            self._sees_optimizers = True
            self._see_new_optimizers(self.torch.optim.Optimizer)

    def _see_new_optimizers(self, optimizer_class: Any) -> None:
        original = optimizer_class.__init__

        @covers(optimizer_class, "__init__")
        def __init__(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            self._has_optimizer, self._has_acted = True, False
            original(optimizer, *args, **kwargs)

    def around(self, module: Any, args: Args, kwargs: Kwargs) -> Surroundings | None:
        if self._has_optimizer or not self.torch.is_grad_enabled():
            return None
        self._has_acted = True
        return getattr(self.torch, self.value)(), unchanged

    def read_one(self, setting: Planned) -> Answer:
        found = self.value if self._has_acted else None
        detail = "" if self._has_acted else self.cannot() or "no outermost module was called with gradients"
        witness = "gradient mode at the outermost modules' calls"
        return answer(setting, found, witness, self._has_acted, detail)
