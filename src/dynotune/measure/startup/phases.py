"""Divide the time of a start into phases, such as imports, building the model, and compiling."""

import itertools
from collections.abc import Iterable, Iterator

from dynotune.launch.records import Record
from dynotune.schema.events import (
    CompilerCounted,
    CycleFound,
    ProcessCreated,
    RootMet,
    StartCovered,
    StartSpan,
)
from dynotune.schema.facts import Unknown
from dynotune.schema.startup import PHASES, Compiled, Phase, Span, SpanPhase

NUM_IMPORTS = 5
COVERED: dict[str, tuple[Phase, ...]] = {
    "imports": ("imports_before_torch", "torch_import", "imports", "compiler_import"),
    "cuda": ("cuda_start",),
    "weights": ("weights", "to_device"),
    "model_build": ("model_build",),
    "compile": ("compile",),
}
"""Map each kind of data that the agent reports as invisible to the phases that are then unknown."""
LEAST_LAUNCHER_S = 0.02
"""The kernel records a process's start in hundredths of a second."""


def innermost(
    spans: Iterable[Span], begin_s: float, end_s: float
) -> Iterator[tuple[float, float, Span | None]]:
    """Cut the time from `begin_s` to `end_s` into pieces, each with the latest-begun span around it; None
    outside spans.

    Spans may nest, overlap, repeat, and extend beyond the ends.
    """
    waiting = sorted((span for span in spans if span.end_s > span.begin_s), key=lambda span: span.begin_s)
    edges = {edge for span in waiting for edge in (span.begin_s, span.end_s) if begin_s < edge < end_s}
    around: list[Span] = []
    at_span = 0
    for at_s, until_s in itertools.pairwise(sorted({begin_s, end_s} | edges)):
        while at_span < len(waiting) and waiting[at_span].begin_s <= at_s:
            around.append(waiting[at_span])
            at_span += 1
        around = [span for span in around if span.end_s > at_s]
        # If spans begin together, the shorter one is inside.
        yield at_s, until_s, max(around, key=lambda span: (span.begin_s, -span.end_s), default=None)


def split(spans: Iterable[Span], begin_s: float, end_s: float) -> dict[SpanPhase, float]:
    """Divide the time from `begin_s` to `end_s` by the phases of `innermost`; time outside all spans is
    `other`.

    Returns:
        Seconds by phase, always with `other`; their sum is `end_s - begin_s`.
    """
    found: dict[SpanPhase, float] = {"other": 0.0}
    for at_s, until_s, span in innermost(spans, begin_s, end_s):
        phase: SpanPhase = "other" if span is None else span.phase
        found[phase] = found.get(phase, 0.0) + until_s - at_s
    return found


def phases(record: Record, launched_s: float, end_s: float) -> dict[Phase, float | Unknown]:
    """Return the phases from launch to `end_s`, of the process that ran the first step or printed the awaited
    line.

    Returns:
        All phases in order, in seconds; 0 if a phase was observed and did not occur. Known phases sum to
        `end_s - launched_s`.
    """
    begun_s = next((span.begin_s for span in record.all(StartSpan) if span.phase == "agent"), None)
    if begun_s is None:
        return unknown("this process was not watched from its start")
    spans = _spans(record)
    shared = split(
        [*spans, *before(record, launched_s, begun_s), *first_step(record, end_s)], launched_s, end_s
    )
    # The first step's wait for its batch is known in length but not in time; it is subtracted from the step's
    # own time.
    wait_s = min(record.steps[0].wait_s, shared.get("first_step", 0.0)) if record.steps else 0.0
    if wait_s > 0:
        shared["first_batch"] = wait_s
        shared["first_step"] -= wait_s
    not_seen = _not_seen(record)
    return {phase: shared[phase] if phase in shared else not_seen.get(phase, 0.0) for phase in PHASES}


def unknown(reason: str) -> dict[Phase, float | Unknown]:
    """Return all phases as unknown, for a start of which nothing was recorded."""
    return dict.fromkeys(PHASES, Unknown(reason))


def imports(record: Record) -> list[tuple[str, float]]:
    """Return the longest imports, each with the imports that it contains."""
    took: dict[str, float] = {}
    for span in record.all(StartSpan):
        if span.name:
            took[span.name] = took.get(span.name, 0.0) + span.end_s - span.begin_s
    return sorted(took.items(), key=lambda item: -item[1])[:NUM_IMPORTS]


def compiled(record: Record) -> Compiled | None:
    """Return the counts of torch.compile; None if nothing was compiled or torch does not count."""
    last = record.last(CompilerCounted)
    if last is None or last.counts is None:
        return None
    kinds = ("fxgraph_cache_hit", "fxgraph_cache_miss", "fxgraph_cache_bypass")
    found, missed, bypassed = (last.counts.get(kind, 0) for kind in kinds)
    return Compiled(num_found=found, num_missed=missed + bypassed, num_threads=last.compile_threads)


def _spans(record: Record) -> list[Span]:
    """Return spans, with imports before torch separated from those after it."""
    recorded = record.all(StartSpan)
    torch_s = min((span.begin_s for span in recorded if span.phase == "torch_import"), default=None)
    found: list[Span] = []
    for span in recorded:
        if span.phase != "imports" or torch_s is None or span.begin_s >= torch_s:
            found.append(span)
            continue
        found.append(Span("imports_before_torch", span.begin_s, min(span.end_s, torch_s)))
        # The first import may itself import torch.
        found.append(Span("imports", torch_s, span.end_s))
    return found


def before(record: Record, launched_s: float, begun_s: float) -> list[Span]:
    """Return the times before the agent's first line: before the process began, and in the interpreter."""
    created = record.last(ProcessCreated)
    if created is not None and launched_s + LEAST_LAUNCHER_S < created.started_s < begun_s:
        started_s = created.started_s
        return [Span("launcher", launched_s, started_s), Span("interpreter", started_s, begun_s)]
    return [Span("interpreter", launched_s, begun_s)]


def first_step(record: Record, end_s: float) -> list[Span]:
    """Return the span of the first step, which ended at `end_s`; none if no step was found."""
    begin_s = record.begin_s
    if begin_s is None or not record.steps:
        return []
    cycle = record.last(CycleFound)
    if cycle is not None and cycle.kinds and cycle.kinds[0] == "call":
        # A call is recorded at its end, and so is the begin of a step that begins with a call.
        roots = [root.at_s for root in record.all(RootMet)]
        begin_s = max((at_s for at_s in roots if at_s < begin_s), default=begin_s)
    return [Span("first_step", begin_s, end_s)] if begin_s < end_s else []


def _not_seen(record: Record) -> dict[Phase, Unknown]:
    covered = record.last(StartCovered)
    if covered is None:
        why = Unknown("torch was not imported, or the start ended before")
        return dict.fromkeys(("cuda_start", "model_build", "weights", "to_device", "compile"), why)
    return {
        phase: Unknown(reason) for name, reason in covered.unknown.items() for phase in COVERED.get(name, ())
    }
