"""The results of calls and of updates with each candidate and without, as the task asks for them."""

from __future__ import annotations

from .results_within import ResultsWithin
from .updates_within import UpdatesWithin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from ..core.annotations import Args, Kwargs
    from ..core.program import Program
    from .arm_switch import ArmSwitch


class ResultsOfArms:
    """Compare a candidate's first calls and updates with the same ones without it, until they are told.

    `order`: fields `num_results` and `rounding` of the task.
    """

    def __init__(self, program: Program, arms: Sequence[ArmSwitch], order: dict[str, Any]) -> None:
        wanted, rounding = order.get("num_results", 0), order.get("rounding", 0.0)
        compared = arms if wanted else ()
        self._calls = {arm: ResultsWithin(program, wanted, rounding) for arm in compared if arm.changes_calls}
        self._updates = {arm: UpdatesWithin(program, wanted) for arm in compared}

    @property
    def compares_calls(self) -> bool:
        return bool(self._calls)

    def compares_calls_of(self, arm: ArmSwitch) -> bool:
        return arm in self._calls

    def compared(
        self,
        arm: ArmSwitch,
        module: Any,
        args: Args,
        kwargs: Kwargs,
        without: Callable[[], Any],
        with_it: Callable[[], Any],
    ) -> Any:
        """Return the output of the call with the candidate; compare it, if that is still to be done."""
        results = self._calls.get(arm)
        if results is None:
            return with_it()
        return results.compared(module, args, kwargs, without, arm.paused, with_it)

    def forget_calls(self, arm: ArmSwitch) -> None:
        """Compare no calls of the candidate any more."""
        self._calls.pop(arm, None)

    def watch(self, arm: ArmSwitch) -> None:
        """Compare the next updates, for the candidate is on now."""
        if arm in self._updates:
            self._updates[arm].watch(arm.own_groups())

    def unwatch(self, arm: ArmSwitch) -> None:
        if arm in self._updates:
            self._updates[arm].unwatch()

    def told(self, arm: ArmSwitch) -> Iterator[dict[str, Any]]:
        """Yield what was found of the candidate, as fields of events, and forget it."""
        for what, results in (("outputs", self._calls), ("updates", self._updates)):
            within = results.pop(arm, None)
            if within is not None and (fields := within.read()) is not None:
                yield {"what": what, "knobs": arm.compared(in_updates=what == "updates"), **fields}
