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


class CompilerCounted(_Event, frozen=True, kw_only=True, tag="compiled"):
    """Counts of torch.compile when the start ended.

    `counts`: the compilers' counters, such as `fxgraph_cache_hit`. `compile_threads`: number of processes
        that compile.
    """

    counts: dict[str, Int] | None = None
    compile_threads: Int | None = None
