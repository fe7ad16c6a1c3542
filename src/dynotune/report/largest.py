"""Lay out the largest value of a placeholder that holds limits: the answer, the runs, and what bounds it."""

from __future__ import annotations

from dynotune.report.blocks import (
    Answer,
    Cell,
    Column,
    CommandLine,
    Fields,
    Note,
    On,
    Report,
    Section,
    Span,
    Table,
)
from dynotune.report.places import prose
from dynotune.schema.facts import Unknown
from dynotune.schema.largest import FLOORS, LargestValue, Limit, Measured, Quantity, ValueRun
from dynotune.text import largest_words, words

_SOURCES = {
    "marks": "",
    "threads": (
        "A stream is a thread that calls the model, and its latency is that of its calls, without the "
        "time that a frame waits before its call. dynotune.frame_done(stream, since_s) adds this time."
    ),
    "samples": (
        "Streams were not told apart, because their frames share calls of the model: the rate is that "
        "of all samples, divided by the number of streams. dynotune.frame_done(stream, since_s) gives "
        "the rate and latency of each stream."
    ),
}
"""What to know of streams that were told apart in this way."""


def layout(plan: LargestValue) -> Report:
    """Lay out the whole answer."""
    limits = [limit for limit in plan.limits if limit.quantity != "latency-growth"]
    header = [
        Column(plan.name, "number"),
        *(Column(f"{largest_words.NAMES[limit.quantity]} (95%)", "whole") for limit in limits),
        Column("", "whole"),
    ]
    rows: list[list[Cell]] = [
        [str(run.value), *(_cell(run, limit.quantity) for limit in limits), _verdict_of(run, plan)]
        for run in sorted(plan.runs, key=lambda run: run.value)
    ]
    verdict, *more = answer_in_words(plan)
    lines = [*more, *prediction_lines(plan), *_notes(plan)]
    runs = [Table("", header, rows, cards=False), *(Note(prose(line)) for line in lines)]
    return Report(
        kicker="dynotune plan",
        answer=Answer(large=_large(plan), line=verdict, sentence=verdict),
        command=words.shell(plan.run.command),
        head=[Fields([("command", words.command(plan.run.command))], on=On.LONG)],
        use=_use(plan),
        sections=[Section("Plan", runs, aside=limits_in_words(plan))],
        footer="dynotune plan --json FILE writes all that is shown here.",
    )


def _large(plan: LargestValue) -> str:
    if plan.largest is not None:
        return f"{plan.name} = {plan.largest}"
    return f"No {plan.name}" if plan.end == "none" else "Not proved"


def _use(plan: LargestValue) -> list[CommandLine]:
    if plan.end != "budget":
        return []
    return [CommandLine("Go on", ["dynotune", "plan", plan.name, "--resume", plan.id])]


def _verdict_of(run: ValueRun, plan: LargestValue) -> Span:
    verdict = run.verdict(plan.limits)
    return Span(verdict, {"holds": "good", "breaks": "bad", "open": "wary"}[verdict])  # type: ignore[arg-type]


def limits_in_words(plan: LargestValue) -> str:
    """Write the limits as `each of streams: 25 frames/s, latency p99 up to 40 ms`."""
    parts = [
        f"{_name(limit)} {'from' if limit.quantity in FLOORS else 'up to'} {_bound(limit)}"
        for limit in plan.limits
        if limit.quantity not in ("frame-rate", "latency-growth")
    ]
    if plan.fps is not None:
        parts.insert(0, f"{plan.fps:g} frames/s for each of {plan.name}")
    return ", ".join(parts)


def answer_in_words(plan: LargestValue) -> list[str]:
    """Say which value is proved, which is refuted, and what binds there."""
    lines = [_verdict(plan)]
    if plan.end == "proved" and plan.undecided:
        lines.append(
            f"Undecided: {largest_words.numbers(plan.undecided)}, whose runs do not agree or lie at a limit."
        )
    if plan.binds is not None:
        lines.append(f"What binds at {plan.refuted}: {plan.binds.name}. {plan.binds.why}")
    return lines


def _verdict(plan: LargestValue) -> str:
    name, largest = plan.name, plan.largest
    runs = sum(run.value == largest for run in plan.runs)
    match plan.end:
        case "proved":
            is_next = plan.refuted == (largest or 0) + 1
            step = "the next value" if is_next else "the next one that noise allows"
            proved = f"{name} = {largest} is proved: {runs} runs hold."
            return f"{proved} {plan.refuted}, {step}, is refuted: {_why(plan)}."
        case "ceiling":
            held = f"{name} = {largest} holds in {runs} runs, and is the largest that was to be tried."
            return f"{held} The largest value that holds is not known: raise --most to try larger values."
        case "none":
            return f"Not even {name} = {plan.least} holds: {_why(plan)}."
        case "open":
            values = largest_words.numbers(plan.undecided)
            held = (
                "Nothing is proved" if largest is None else f"{name} = {largest} is proved, no value above it"
            )
            return f"{held}: runs at {name} = {values} contradict each other, or lie at a limit."
        case "budget":
            held = "nothing is proved" if largest is None else f"{name} = {largest} is proved"
            what = f"; {plan.refuted} is refuted" if plan.refuted is not None else ""
            return f"The time was over: {held}{what}."
        case None:
            return "The search goes on."


def prediction_lines(plan: LargestValue) -> list[str]:
    """Say what was predicted before the search, and how far the search found it to be off."""
    if isinstance(plan.predicted, Unknown):
        return [] if plan.fps is None else [f"Nothing was predicted: {plan.predicted.reason}."]
    lines = [largest_words.prediction_in_words(plan)]
    if plan.largest is not None and plan.prediction and plan.end == "proved":
        off = plan.prediction / plan.largest - 1
        lines[0] += f" The search proved {plan.largest}: the prediction was off by {off:+.0%}."
    return lines


def _why(plan: LargestValue) -> str:
    """Say by which limits the refuted value broke."""
    runs = [run for run in plan.runs if run.value == plan.refuted]
    if failed := next((run.failed for run in runs if run.failed), ""):
        return f"the command failed ({failed.rstrip('.')})"
    broken = {limit.quantity: limit for run in runs for limit in run.broken(plan.limits)}
    return "; ".join(_broken(runs, limit) for limit in broken.values()) or "its limits break"


def _broken(runs: list[ValueRun], limit: Limit) -> str:
    found = [one for run in runs for one in run.measured if one.quantity == limit.quantity]
    worst = (min if limit.quantity in FLOORS else max)(found, key=lambda one: one.value)
    which = f" in stream {worst.worst}" if worst.worst else ""
    wanted = f"{'at least' if limit.quantity in FLOORS else 'at most'} {_bound(limit)} wanted"
    return f"{_name(limit)} {largest_words.value(limit.quantity, worst.value)}{which}, {wanted}"


def _name(limit: Limit) -> str:
    return largest_words.NAMES[limit.quantity]


def _bound(limit: Limit) -> str:
    return largest_words.value(limit.quantity, limit.bound)


def _cell(run: ValueRun, quantity: Quantity) -> str:
    measured = next((one for one in run.measured if one.quantity == quantity), None)
    if measured is None:
        return "failed" if run.failed else words.UNKNOWN
    return _interval(measured)


def _interval(measured: Measured) -> str:
    text = largest_words.value(measured.quantity, measured.value)
    if measured.low == measured.high:
        return text
    low, high = (
        largest_words.value(measured.quantity, measured.low),
        largest_words.value(measured.quantity, measured.high),
    )
    return f"{text} ({low} to {high})"


def _notes(plan: LargestValue) -> list[str]:
    """List what single runs showed beside their values, each once, and how streams were told apart."""
    last = next((run.serving for run in reversed(plan.runs) if run.serving is not None), None)
    shown = plan.largest if plan.largest is not None else plan.refuted
    notes = dict.fromkeys(note for run in plan.runs if run.value == shown for note in run.notes)
    return [
        *filter(None, [_SOURCES[last.source] if last is not None else ""]),
        *notes,
        *plan.warnings,
    ]
