"""Compare results of calls with and without a candidate, while the program runs."""

from __future__ import annotations

from ..core.device import free_memory
from ..core.errors import by_a_signal
from .digests import digests_of, fields_of, precision_of, random_states
from .references import copied

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import Any

    from ..core.annotations import Args, Kwargs
    from ..core.program import Program
    from .digests import Digest

NAMES = ("baseline", "candidate", "redrawn", "reference", "rounded")


class ResultsWithin:
    """Digests of the outputs of a candidate's first calls, and of the same calls without the candidate.

    Only training calls are compared: a call that generates or evaluates may keep its results, and must be
    made once. The call without the candidate comes first, keeps no graph, and draws the same random numbers
    as the call with it. If the call draws any, it is repeated with others, because a candidate's kernels may
    draw in another order.

    If the call draws no random numbers, two copies of the module repeat it: in float64, and rounding by
    `rounding`.

    `num_calls`: number of calls to compare.
    """

    def __init__(self, program: Program, num_calls: int, rounding: float = 0.0) -> None:
        self._program, self._num_left, self._rounding = program, num_calls, rounding
        self._found: dict[str, list[list[Digest]]] = {name: [] for name in NAMES}
        self._draws: set[str] = set()
        self._precision = ""

    def compared(
        self,
        module: Any,
        args: Args,
        kwargs: Kwargs,
        without: Callable[[], Any],
        paused: Callable[[], AbstractContextManager[None]],
        with_it: Callable[[], Any],
    ) -> Any:
        """Return the output of the call with the candidate.

        Args:
            without, with_it: call the module with `args` and `kwargs`, as the program does and with the
                candidate.
            paused: context in which the candidate is off.
        """
        torch = self._program.torch
        # A program that compiles itself would compile again for a call that keeps no graph.
        if (
            not self._num_left
            or self._program.compiles_itself
            or not (module.training and torch.is_grad_enabled())
        ):
            return with_it()
        self._num_left -= 1
        self._precision = self._precision or precision_of(torch, module)
        before, on_device = (
            torch.get_rng_state(),
            torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
        )
        looked_at = random_states(torch)
        try:
            with torch.no_grad(), paused():
                plain = digests_of(torch, without())
                now = random_states(torch)
                drawn = {kind for kind, state in looked_at.items() if now.get(kind) != state}
                redrawn = digests_of(torch, without()) if drawn else plain
                if self._rounding and not drawn:
                    self._refer(module, args, kwargs)
        finally:
            torch.set_rng_state(before)
            if on_device:
                torch.cuda.set_rng_state_all(on_device)
        output = with_it()
        self._draws |= drawn
        for name, digests in zip(NAMES, (plain, digests_of(torch, output), redrawn)):
            self._found[name].append(digests)
        return output

    def _refer(self, module: Any, args: Args, kwargs: Kwargs) -> None:
        """Compare a call with its reference calls; stop comparing after a failure for lack of memory or of a
        kernel."""
        torch = self._program.torch
        try:
            exact, rounded = copied(torch, module, args, kwargs, self._rounding)
        except Exception as error:
            if by_a_signal(error):
                raise
            free_memory(torch, error)
            self._rounding, self._found["reference"] = 0.0, []
        else:
            self._found["reference"].append(exact)
            self._found["rounded"].append(rounded)

    def read(self) -> dict[str, Any] | None:
        """Return the comparison's result as fields of an event; None if no call could be compared."""
        found = dict(self._found)
        if not found["candidate"]:
            return None
        if len(found["reference"]) < len(found["candidate"]):
            found["reference"] = found["rounded"] = []
        if not self._draws:
            found["redrawn"] = []
        fields: dict[str, Any] = {name: [fields_of(call) for call in calls] for name, calls in found.items()}
        return {**fields, "draws": sorted(self._draws), "precision": self._precision}
