"""Divide the time of a run into rows, so that each moment belongs to exactly one row.

A moment belongs to the innermost span that was recorded around it. Outside spans, and inside compilations, it
belongs to what the main thread's stack said. What neither tells is unexplained.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from dynotune.launch.records import EPOCH, Record
from dynotune.measure.account.processes import Life, lives, turns
from dynotune.measure.account.stacks import Piece, Samples, pieces
from dynotune.measure.startup import phases
from dynotune.schema.account import ACTIVITIES, PARTS, AccountDetail, AccountRow, Activity, RunPart
from dynotune.schema.events import StartSpan
from dynotune.schema.startup import Span, SpanPhase

MOST_DETAILS = 12
LEAST_DETAIL = 0.001
"""Smallest detail, as a share of the run."""
_ACTIVITY_OF: dict[SpanPhase, Activity] = {
    "launcher": "launcher",
    "interpreter": "interpreter",
    "agent": "agent",
    "imports_before_torch": "imports",
    "torch_import": "imports",
    "imports": "imports",
    "compiler_import": "imports",
    "library_load": "library_load",
    "cuda_start": "cuda_start",
    "model_build": "model_build",
    "weights": "weights",
    "to_device": "to_device",
    "graph_capture": "graph_capture",
    "process_end": "process_end",
}
OF_A_STEP: tuple[Activity, ...] = (
    "loader",
    "forward",
    "backward",
    "optimizer",
    "communication",
    "device_wait",
    "own",
    "epoch_start",
)
"""What a step consists of. In the first step, all but the wait for its batch is the first step's."""
OF_THE_MODEL: tuple[Activity, ...] = ("forward", "backward", "optimizer")
KEPT_IN_VALIDATION: tuple[Activity, ...] = ("saving", "logging", "weights", "download", "epoch_start")
"""What stays a row of its own inside a validation."""


@dataclass(slots=True)
class _Sums:
    """Seconds of a row, and its seconds by package or function.

    `lines`: seconds by place and source line, for each function.
    """

    took_s: float = 0.0
    by_name: Counter[str] = field(default_factory=Counter)
    lines: dict[str, Counter[tuple[str, str]]] = field(default_factory=dict)


class Rows:
    """Sums of time by part and activity.

    Args:
        main: the process that is accounted for, whose steps divide the run into parts.
        launched_s, ended_s: begin and end of the run (CLOCK_MONOTONIC).
        was_killed: whether a signal ended the command, so that its last moments were not recorded.
        by_shell: whether the command is a shell that runs Python and other commands.
    """

    def __init__(
        self,
        records: Sequence[Record],
        main: Record,
        launched_s: float,
        ended_s: float,
        *,
        was_killed: bool = False,
        by_shell: bool = False,
    ) -> None:
        self._main, self._was_killed, self._wall_s = main, was_killed, ended_s - launched_s
        self._ends = [step.end_s for step in main.steps if step.end_s <= ended_s]
        began = phases.first_step(main, self._ends[0]) if self._ends else []
        self._first_step_s = began[0].begin_s if began else None
        self._sums: dict[tuple[RunPart, Activity], _Sums] = {}
        self._unexplained: Counter[tuple[str, ...]] = Counter()
        found = lives(records, main, launched_s, ended_s, by_shell=by_shell)
        for at_s, until_s, life in turns(found, launched_s, ended_s):
            if life is None:
                part = self._part(at_s)
                self._add("between" if part == "steps" else part, "other_commands", until_s - at_s)
            else:
                self._of_process(life, at_s, until_s)

    def rows(self) -> list[AccountRow]:
        """Return the rows that took time, in the order of parts and, within a part, of activities."""
        parts, activities = list(PARTS), list(ACTIVITIES)
        ordered = sorted(
            self._sums.items(), key=lambda item: (parts.index(item[0][0]), activities.index(item[0][1]))
        )
        return [
            AccountRow(part, activity, sums.took_s, self._details(sums))
            for (part, activity), sums in ordered
            if sums.took_s > 0
        ]

    @property
    def unexplained_stack(self) -> list[str]:
        """Return the stack that was seen most in unexplained time; [] if none was seen."""
        return list(self._unexplained.most_common(1)[0][0]) if self._unexplained else []

    def _details(self, sums: _Sums) -> list[AccountDetail]:
        found = []
        for name, took_s in sums.by_name.most_common(MOST_DETAILS):
            if took_s < LEAST_DETAIL * self._wall_s:
                break
            lines = sums.lines.get(name)
            place, text = lines.most_common(1)[0][0] if lines else (name, "")
            found.append(AccountDetail(place, took_s, text))
        return found

    def _of_process(self, life: Life, begin_s: float, end_s: float) -> None:
        samples, spans = Samples(life.record), [*_spans(life), *_end(life, was_killed=self._was_killed)]
        edges = [self._first_step_s, *self._ends[:1], *self._ends[-1:]]
        first = 0
        for from_s, to_s, span in phases.innermost(spans, begin_s, end_s):
            for at_s, until_s in _cut(from_s, to_s, edges):
                if span is not None and span.phase != "compile":
                    self._of_span(span, at_s, until_s)
                    continue
                for piece in pieces(samples.samples, at_s, until_s, first):
                    first = piece.number
                    self._of_sample(samples, piece, is_compiling=span is not None)

    def _of_span(self, span: Span, at_s: float, until_s: float) -> None:
        activity = _ACTIVITY_OF[span.phase]
        part = self._part(at_s)
        name = span.name.partition(".")[0] if activity == "imports" else ""
        self._add("between" if part == "steps" else part, activity, until_s - at_s, (name, ""))

    def _of_sample(self, samples: Samples, piece: Piece, *, is_compiling: bool) -> None:
        took_s, part, sample = piece.until_s - piece.at_s, self._part(piece.at_s), piece.sample
        if sample is None:
            if is_compiling:
                self._add("between" if part == "steps" else part, "dynamo", took_s)
            elif self._is_first_step(piece.at_s):
                self._add("start", "first_step", took_s)
            else:
                self._add("unexplained", "unexplained", took_s)
            return
        stack = samples.stacks[sample.stack]
        where = None if stack.place is None else samples.name(stack.place)
        if is_compiling:
            self._add("between" if part == "steps" else part, stack.compiling, took_s, where)
            return
        if stack.activity is None:
            names = tuple(samples.frames[at] for at in samples.numbers[sample.stack])
            self._unexplained[names] += took_s  # type: ignore[assignment]
            self._add("unexplained", "unexplained", took_s)
            return
        validates = stack.validates or (sample.evaluates and samples.knows_evaluation)
        part, activity = self._row(part, stack.activity, piece.at_s, validates=validates)
        self._add(part, activity, took_s, where)

    def _row(
        self, part: RunPart, activity: Activity, at_s: float, *, validates: bool
    ) -> tuple[RunPart, Activity]:
        """Return the row of what a stack said at `at_s`."""
        if validates and activity not in KEPT_IN_VALIDATION and not self._is_first_step(at_s):
            return ("between" if part == "steps" else part), "validation"
        if self._is_first_step(at_s) and activity in OF_A_STEP:
            return part, "first_batch" if activity in ("loader", "epoch_start") else "first_step"
        if part == "steps":
            if activity == "loader" and self._begins_epoch(at_s):
                activity = "epoch_start"
            return ("steps" if activity in OF_A_STEP and activity != "epoch_start" else "between"), activity
        if activity in OF_THE_MODEL:
            activity = "model_run"
        return part, activity

    def _part(self, at_s: float) -> RunPart:
        """Return the part of the run at a time, which is never unexplained by itself."""
        if not self._ends or at_s < self._ends[0]:
            return "start"
        return "steps" if at_s < self._ends[-1] else "end"

    def _is_first_step(self, at_s: float) -> bool:
        return self._first_step_s is not None and self._first_step_s <= at_s < self._ends[0]

    def _begins_epoch(self, at_s: float) -> bool:
        """Tell whether a loader was started in the step that runs at `at_s`."""
        number = bisect_right(self._ends, at_s)
        return number < len(self._ends) and bool(self._main.steps[number].flags & EPOCH)

    def _add(
        self, part: RunPart, activity: Activity, took_s: float, where: tuple[str, str] | None = None
    ) -> None:
        sums = self._sums.setdefault((part, activity), _Sums())
        sums.took_s += took_s
        if where is not None and where[0]:
            name = _without_line(where[0])
            sums.by_name[name] += took_s  # type: ignore[assignment]
            sums.lines.setdefault(name, Counter())[where] += took_s  # type: ignore[assignment]


"""Activities of the spans that a process has outside compilations."""


def _spans(life: Life) -> list[Span]:
    """Return the spans of a process, and its time before the agent's first line."""
    found: list[Span] = list(life.record.all(StartSpan))
    begun_s = next((span.begin_s for span in found if span.phase == "agent"), None)
    if begun_s is not None and life.begin_s < begun_s:
        found += phases.before(life.record, life.begin_s, begun_s)
    return found


def _end(life: Life, *, was_killed: bool) -> list[Span]:
    """Return the time in which a process ended, which no stack shows: Python is over, and the kernel takes
    back memory.

    The last moments of a process that a signal ended are not known.
    """
    if life.exited_s is None and was_killed:
        return []
    begin_s = life.seen_s if life.exited_s is None else life.exited_s
    return [Span("process_end", begin_s, life.end_s)] if begin_s < life.end_s else []


def _cut(begin_s: float, end_s: float, edges: Sequence[float | None]) -> Iterator[tuple[float, float]]:
    inside = {edge for edge in edges if edge is not None and begin_s < edge < end_s}
    yield from itertools.pairwise(sorted({begin_s, end_s} | inside))


def _without_line(place: str) -> str:
    """Return `file: function` for `file(12): function`."""
    return re.sub(r"\(\d+\)(?=: [^:]*$)", "", place)
