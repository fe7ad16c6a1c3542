"""The program's loop that makes most launches of a step, and lines of functions that a trace names.

A trace shows functions and the turns of loops; samples show lines.
"""

import re
from dataclasses import dataclass

from dynotune.doctor import policy
from dynotune.doctor.observation_view import ObservationView, or_else
from dynotune.schema.host import StackLine
from dynotune.schema.trace_summary import Loop, Place

LONG_LOOP = """\
Let one call do all turns of the loop: a module that takes the whole sequence (nn.GRU, nn.LSTM, attention), or \
operations on tensors of all turns. torch.compile would write out each turn, which takes minutes."""  # noqa: E501
_FUNCTION = re.compile(r"(?P<file>.+?)(\((?P<line>\d+)\)|(?<=\.py)): (?P<name>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ProgramLoop:
    """A loop of the program. `line`: the source line of a turn; None if no sample shows the line."""

    loop: Loop
    line: StackLine | None
    on_device: bool

    @property
    def where(self) -> Place:
        return Place(function=self.line.function if self.line is not None else self.loop.function)

    @property
    def is_long(self) -> bool:
        """Tell whether torch.compile would take minutes, since it writes out each turn of a loop."""
        return self.loop.turns * self.loop.launches > policy.MOST_UNROLLED

    @property
    def is_of_many_turns(self) -> bool:
        """Tell whether most launches of a step are made in many turns of the loop."""
        return self.loop.turns >= policy.MANY_TURNS and self.loop.num_share >= policy.MOST_OF_A_LOSS

    def evidence(self) -> str:
        """Return a line of evidence: turns, line, launches of a turn and their share of all launches."""
        what = "launches" if self.on_device else "operators"
        times = f" in each of {self.loop.calls:,.0f} calls" if round(self.loop.calls) > 1 else ""
        text = f": {self.line.text}" if self.line is not None and self.line.text else ""
        return (
            f"{self.loop.turns:,} turns{times} of the loop at {self.where.function}, "
            f"{self.loop.launches:,.0f} {what} "
            f"each: {self.loop.num_share:.0%} of all {what}, {self.loop.share:.0%} of their time{text}"
        )


def main_loop(view: ObservationView, *, of_collectives: bool = False) -> ProgramLoop | None:
    """Return the loop that makes a third of a step's launches, or of their time; None without such a loop or
    a trace.

    Loops whose turns mostly exchange data between ranks count only with `of_collectives`, other loops only
    without. Of nested loops with similar parts, return the one with most turns.
    """
    found = [loop for loop in or_else(lambda: view.trace.loops, []) if _exchanges(loop) == of_collectives]
    large = [loop for loop in found if _part(loop) >= policy.LARGE_PART]
    most = max(map(_part, large), default=0.0)
    inner = [loop for loop in large if _part(loop) >= policy.MOST_OF_A_LOSS * most]
    loop = max(inner, key=lambda loop: loop.turns * loop.calls, default=None)
    return (
        None
        if loop is None
        else ProgramLoop(loop, line_in(view, loop.function, calling=loop.callee), view.uses_cuda)
    )


def _exchanges(loop: Loop) -> bool:
    return "torch/distributed/" in loop.callee or loop.callee.startswith("c10d::")


def _part(loop: Loop) -> float:
    return max(loop.num_share, loop.share)


def told_of(loop: ProgramLoop | None) -> list[str]:
    """Return the line of evidence about the loop; [] without a loop."""
    return [] if loop is None else [loop.evidence()]


def line_in(view: ObservationView, function: str, *, calling: str = "") -> StackLine | None:
    """Return the line of a function of the trace that was seen most, if possible one that calls another
    function.

    None if no sample shows a line of the function.
    """
    stack = or_else(lambda: view.process.stack, [])
    others = [name for each in view.trace.loops for name in (each.function, each.callee)]
    others += [each.function for each in view.trace.ungraded]
    inside = [line for line in stack if _is_line_of(line.function, function, others)]
    those = [line for line in inside if calling and _is_same(line.callee, calling)]
    return max(those or inside, key=lambda line: line.num, default=None)


def _is_line_of(line: str, function: str, others: list[str]) -> bool:
    """Tell whether a line is of the function, which a trace names with its first line if it began while
    recorded.

    The last function of one name in a file that begins before the line counts, the `others` included.
    """
    at, first = _number(line), _number(function)
    if not _is_same(line, function):
        return False
    if at is None or first is None:
        return True
    begins = [
        number for other in others if _is_same(other, function) and (number := _number(other)) is not None
    ]
    return first == max((number for number in (*begins, first) if number <= at), default=None)


def _number(function: str) -> int | None:
    """Return the line number in a function's name; None without one."""
    found = _FUNCTION.match(function)
    return int(found["line"]) if found is not None and found["line"] is not None else None


def _is_same(one: str, other: str) -> bool:
    """Tell whether two functions have the same name in the same file; recorders shorten paths differently."""
    first, second = _FUNCTION.match(one), _FUNCTION.match(other)
    if first is None or second is None or first["name"] != second["name"]:
        return False
    files = sorted((first["file"].replace("\\", "/"), second["file"].replace("\\", "/")), key=len)
    return files[1] == files[0] or files[1].endswith(f"/{files[0].lstrip('/')}")
