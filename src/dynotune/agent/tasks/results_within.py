"""Whether an arm leaves results what they are: calls of the running program, made without it and with it."""

from __future__ import annotations

from .digests import as_fields, digests_of, precision_of, random_states

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..core.program import Program
    from .digests import Digest


class ResultsWithin:
    """Digests of what the first calls of an arm give, and of the same calls without it.

    Calls that train alone: one in which a model generates or is evaluated may keep what it computed, and must be made
    once. The call without the arm comes first, keeps no graph, and draws the random numbers that the call with it draws
    as well. Where it draws any, it is made once more with others: an arm's kernels may draw them in another order.

    Args:
        num_calls: to be compared.
    """

    def __init__(self, program: Program, num_calls: int) -> None:
        self._program, self._num_left = program, num_calls
        self._plain: list[list[Digest]] = []
        self._redrawn: list[list[Digest]] = []
        self._with_arm: list[list[Digest]] = []
        self._draws: set[str] = set()
        self._precision = ""

    def compared(self, module: Any, without: Callable[[], Any], with_it: Callable[[], Any]) -> Any:
        """The output of the call with the arm."""
        torch = self._program.torch
        # A program that compiles itself would do so anew for a call that keeps no graph.
        if not self._num_left or self._program.compiles_itself or not (module.training and torch.is_grad_enabled()):
            return with_it()
        self._num_left -= 1
        self._precision = self._precision or precision_of(torch, module)
        before = _states(torch)
        looked_at = random_states(torch)
        with torch.no_grad():
            plain = digests_of(torch, without())
            now = random_states(torch)
            drawn = {kind for kind, state in looked_at.items() if now.get(kind) != state}
            redrawn = digests_of(torch, without()) if drawn else plain
        _restore(torch, before)
        output = with_it()
        self._plain.append(plain)
        self._with_arm.append(digests_of(torch, output))
        self._draws |= drawn
        self._redrawn.append(redrawn)
        return output

    def read(self) -> dict[str, Any] | None:
        """What was seen, as fields of an event; None if no call could be compared."""
        if not self._with_arm:
            return None
        found = {"baseline": self._plain, "redrawn": self._redrawn if self._draws else [], "candidate": self._with_arm}
        fields: dict[str, Any] = {
            name: [[as_fields(shape, values) for shape, values in call] for call in calls]
            for name, calls in found.items()
        }
        return {**fields, "draws": sorted(self._draws), "precision": self._precision}


def _states(torch: Any) -> tuple[Any, list[Any]]:
    on_device = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return torch.get_rng_state(), on_device


def _restore(torch: Any, states: tuple[Any, list[Any]]) -> None:
    torch.set_rng_state(states[0])
    if states[1]:
        torch.cuda.set_rng_state_all(states[1])
