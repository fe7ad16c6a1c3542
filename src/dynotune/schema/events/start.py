"""Events of a program's start, which are written if the plan asks for the parts of the start."""

from __future__ import annotations

import msgspec

from dynotune.schema.events.process import Int
from dynotune.schema.startup import Span


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    pass


class ProcessCreated(_Event, frozen=True, kw_only=True, tag="starting_process"):
    """The kernel created the process at `started_s` (CLOCK_MONOTONIC, in hundredths of a second)."""

    started_s: float


class StartCovered(_Event, frozen=True, kw_only=True, tag="starting"):
    """The parts of the start that follow torch's import are watched. `unknown`: parts that are not, with the
    reason."""

    unknown: dict[str, str] = {}


class RootMet(_Event, frozen=True, kw_only=True, tag="root"):
    """An outermost module was called for the first time, at `at_s` (CLOCK_MONOTONIC)."""

    at_s: float


class StartSpan(Span, frozen=True, tag_field="event", tag="span"):
    """A part of the start ended. `name`: for an import, the module's."""


class StacksSampled(_Event, frozen=True, kw_only=True, tag="stacks"):
    """Stacks of the main thread, sampled since the last event of this kind.

    Args:
        begin_s: end of the last sample before; `frames`, `stacks` continue those of earlier events.
        frames, texts: places in the code, as `Place.function`, each with the text of its line if the line
            matters.
        own: numbers of the frames of the program's own code; `makes_data`: of constructors of data sets.
        stacks: numbers of frames, the outermost first.
        seen: end of each sample (s, CLOCK_MONOTONIC), number of its stack, and 1 if a model that trains was
            in evaluation mode.
    """

    begin_s: float
    frames: list[str] = []
    texts: list[str] = []
    own: list[Int] = []
    makes_data: list[Int] = []
    stacks: list[list[Int]] = []
    seen: list[tuple[float, Int, Int]] = []


class SamplingEnded(_Event, frozen=True, kw_only=True, tag="stacks_end"):
    """Stacks are not sampled from `at_s` (CLOCK_MONOTONIC) to the program's end; `why`: a clause."""

    why: str
    at_s: float


class CompilerCounted(_Event, frozen=True, kw_only=True, tag="compiled"):
    """Counts of torch.compile when the start ended.

    `counts`: the compilers' counters, such as `fxgraph_cache_hit`. `compile_threads`: number of processes
        that compile.
    """

    counts: dict[str, Int] | None = None
    compile_threads: Int | None = None
