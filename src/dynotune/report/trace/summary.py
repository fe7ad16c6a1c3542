"""Lay out a trace: the verdict, where a step's time goes, causes of lost time, then tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import TypeVar

from dynotune.report.blocks import (
    Answer,
    Bar,
    BarRow,
    Bars,
    Cell,
    Column,
    CommandLine,
    Fields,
    LegendEntry,
    Lines,
    Note,
    On,
    Phrase,
    Piece,
    Report,
    Section,
    Span,
    Table,
    wary,
)
from dynotune.report.parts import OF_A_WINDOW
from dynotune.report.places import place, prose
from dynotune.report.steps import segments
from dynotune.report.trace.window import (
    NUM_OF_A_MACHINE,
    Per,
    listed,
    numbers,
    recorded,
    short_kernel,
    window,
)
from dynotune.schema.trace_summary import (
    RANK_PHASES,
    Calls,
    Cause,
    Copies,
    DeviceTime,
    Kernels,
    Place,
    TraceSummary,
)
from dynotune.text import words

NUM_EVIDENCE, LONGEST_EVIDENCE = 6, 160
"""Evidence of a cause beyond this is in the JSON."""
VIEWER = "https://ui.perfetto.dev: Open trace file"
T = TypeVar("T")
_total = attrgetter("total_s")
ALIGNED = {
    "clock": "The ranks' clocks were aligned by the absolute times in the traces.",
    "collectives": "The ranks' clocks were aligned by their common collectives.",
    "nothing": "Their clocks could not be aligned.",
}


def layout(summary: TraceSummary, *, top: int = 5) -> Report:
    """Lay out the whole answer, with `top` rows per list in the terminal."""
    verdict = prose(summary.verdict)
    return Report(
        kicker="dynotune trace",
        answer=Answer(large=_large(summary), line=verdict, sentence=verdict),
        head=[Fields(_head(summary))],
        use=_use(summary),
        sections=[
            *_shares(summary),
            *_devices(summary, top),
            *_causes(summary, top),
            *(replace(block, on=On.ALL_OF_IT) for block in tables(summary, top)),
            *_notes(summary),
            Note("--verbose adds kernels, copies, calls, gaps and operators.", tone="dim", on=On.SCREEN),
        ],
        footer="dynotune trace --json FILE writes all that is shown here.",
    )


def _large(summary: TraceSummary) -> str:
    """Name the part of a step that takes most of its time; the step's length if no part is known."""
    if summary.shares is not None:
        largest = max(OF_A_WINDOW, key=lambda part: part.of(summary.shares))
        return f"{words.share(largest.of(summary.shares))} {largest.label}"
    return "Trace"


def _use(summary: TraceSummary) -> list[CommandLine]:
    """Return the line that explains the largest cause, and what proves a remedy."""
    if not summary.causes:
        return []
    largest = max(summary.causes, key=lambda cause: cause.lost_s)
    explain = CommandLine(
        "More on the largest cause, and what helps", ["dynotune", "explain", *words.shell([largest.id])]
    )
    diagnose = ["dynotune", "diagnose", "--", "COMMAND"]
    return [explain, CommandLine("The same of the running program, with lines to paste", diagnose)]


def _head(summary: TraceSummary) -> list[tuple[str, Phrase | Lines]]:
    files, num_more = list(summary.files), len(summary.files) - NUM_OF_A_MACHINE
    more = [f"and {num_more} more"] if num_more > 0 else []
    return [
        ("trace", Lines((*files[:NUM_OF_A_MACHINE], *more))),
        ("recorded", recorded(summary)),
        *([("window", window(summary))] if summary.window_s is not None else []),
        *([("viewer", VIEWER)] if any(file.endswith((".json", ".json.gz")) for file in files) else []),
    ]


def _notes(summary: TraceSummary) -> list[Piece]:
    blocks = wary(summary.notes, "note")
    if summary.unknown:
        rows = [[Span(name, "dim"), Span(why.reason, "dim")] for name, why in sorted(summary.unknown.items())]
        blocks.append(Section("Not known from this trace", [Table("", [Column(""), Column("")], rows)]))
    return blocks


def _shares(summary: TraceSummary) -> list[Piece]:
    shares, window_s, per = summary.shares, summary.window_s, Per.of(summary)
    if shares is None or window_s is None:
        return []
    what = "A step" if per.num_steps else "The window"
    detail = f"{words.duration(per.part(window_s))}, on {_shown_device(summary.devices)}"
    legend = [
        LegendEntry(part, part.label, [words.fine_share(share), per.time(share * window_s)])
        for part in OF_A_WINDOW
        if (share := part.of(shares)) > 0
    ]
    bar = BarRow("", "", Bar(segments(OF_A_WINDOW, shares)))
    rows = [[entry.name, *entry.figures] for entry in legend]
    table = Table(
        "Share and time of each part",
        [Column("Part"), *numbers("Share", "Time")],
        rows,
        folded=True,
        on=On.PAGE,
    )
    return [Section(what, [Bars(f"{what}, by part", [bar], legend), table], aside=detail)]


def _shown_device(devices: Sequence[DeviceTime]) -> str:
    """Return the device whose shares are shown: the busiest device of the rank with the longest window."""
    if len(devices) < 2:
        return "the device"
    slowest = max(devices, key=lambda device: (device.window_s, device.busy_s))
    return f"device {slowest.device}" + (f" of rank {slowest.rank}" if slowest.rank is not None else "")


def _devices(summary: TraceSummary, top: int) -> list[Piece]:
    if len(summary.devices) < 2:
        return []
    limit = max(top, NUM_OF_A_MACHINE)
    by_idle = sorted(summary.devices, key=lambda device: device.idle_s / (device.window_s or 1), reverse=True)
    chosen = by_idle if len(by_idle) > limit else summary.devices
    header = [*numbers("rank", "device", "window"), Column(""), *numbers("busy", "compute", "copy", "comm.")]
    return listed("Devices", "", header, [_device(device) for device in chosen], limit)


def _device(device: DeviceTime) -> list[Cell]:
    window_s = device.window_s
    shares = [
        words.fine_share(part_s / window_s) if window_s else words.UNKNOWN
        for part_s in (device.busy_s, device.compute_s, device.copy_s, device.communication_s)
    ]
    bar = Bar(segments(OF_A_WINDOW, device.shares))
    return [_rank(device.rank), str(device.device), words.duration(window_s), bar, *shares]


def _causes(summary: TraceSummary, top: int) -> list[Piece]:
    per = Per.of(summary)
    causes = sorted(summary.causes, key=lambda cause: cause.lost_s, reverse=True)
    rows: list[list[Cell]] = [
        [Span(per.time(cause.lost_s), "strong"), words.fine_share(cause.share), _cause(cause)]
        for cause in causes
    ]
    detail = f"{per.words}: upper bounds, each cause on its own"
    return listed("Time lost", detail, [*numbers("", ""), Column("")], rows, top)


def _cause(cause: Cause) -> Lines:
    lines: list[Phrase] = [(Span(cause.id, "strong"), "  ", prose(cause.claim))]
    if where := place(cause.where):
        lines.append(where)
    evidence = cause.evidence[:NUM_EVIDENCE]
    lines += [Span(prose(line, longest=LONGEST_EVIDENCE), "dim") for line in evidence]
    return Lines(tuple(lines))


def tables(summary: TraceSummary, top: int) -> list[Piece]:
    """Lay out all tables that have a row, with `top` rows each in the terminal."""
    makers = (_ranks, _communication, _kernels, _copies, _syncs, _allocations, _gaps, _operators, _memory)
    return [block for make in makers for block in make(summary, top)]


def _kernels(summary: TraceSummary, top: int) -> list[Piece]:
    """Show kernels by class, summed over the ranks and divided by the number of ranks."""
    per, num_ranks = Per.of(summary), len(summary.kernels)
    if not any(kernels.num for kernels in summary.kernels):
        return []
    whole_s = sum(kernels.total_s for kernels in summary.kernels)
    every = [each for kernels in summary.kernels for each in kernels.classes]
    classes = sorted(
        _grouped(every, key=lambda each: (each.name,)), key=lambda alike: -sum(map(_total, alike))
    )
    rows = []
    for alike in classes:
        total_s, num = sum(map(_total, alike)), sum(each.num for each in alike)
        rows.append(
            (
                alike[0].name,
                words.fine_share(total_s / whole_s if whole_s else None),
                per.time(total_s / num_ranks),
                per.count(num / num_ranks),
                _time(total_s / num if num else None),
                short_kernel(max(alike, key=_total).largest),
            )
        )
    columns = [Column("class"), *numbers("share", "time", "kernels", "mean"), Column("most of it in")]
    detail = per.words + (f", mean of {num_ranks} ranks" if num_ranks > 1 else "")
    # Classes are few, and their shares are read together: twice as many as of other lists.
    if num_ranks > 1:
        return [*listed("Kernels by class", detail, columns, rows, 2 * top), *_kernels_by_rank(summary, top)]
    table = Table("", columns, rows, most=2 * top, all_by=f"--top {len(rows)}")
    about = _about_kernels(summary.kernels[0], per)
    return [Section("Kernels by class", [table, about], aside=detail)] if rows else [about]


def _about_kernels(kernels: Kernels, per: Per) -> Note:
    facts = [f"{per.count(kernels.num)} kernels {per.words}", f"{words.rate(kernels.per_s)} per second"]
    if kernels.mean_s is not None:
        facts.append(f"mean {words.duration(kernels.mean_s)}")
    if kernels.median_s is not None:
        facts.append(f"median {words.duration(kernels.median_s)}")
    if kernels.num_launches is not None:
        facts.append(f"{per.count(kernels.num_launches)} launches")
    if kernels.in_graphs:
        facts.append(f"{per.count(kernels.in_graphs)} from CUDA graphs")
    if kernels.mean_queue_depth is not None:
        deepest = (
            "" if kernels.max_queue_depth is None else f", {words.count(kernels.max_queue_depth)} at most"
        )
        facts.append(f"queue {words.count(kernels.mean_queue_depth)} deep on average{deepest}")
    told = "; ".join(facts) + "."
    if kernels.tensor_core_share is not None:
        used = words.share(kernels.tensor_core_share)
        told += f" Tensor cores: {used} of the time of matrix products, convolutions and attention."
    return Note(told, tone="dim")


def _kernels_by_rank(summary: TraceSummary, top: int) -> list[Piece]:
    per = Per.of(summary)
    rows = [
        (
            _rank(each.rank),
            per.count(each.num),
            words.rate(each.per_s),
            _time(each.mean_s),
            "" if each.num_launches is None else per.count(each.num_launches),
            per.count(each.in_graphs) if each.in_graphs else "",
            "" if each.mean_queue_depth is None else words.count(each.mean_queue_depth),
            "" if each.tensor_core_share is None else words.share(each.tensor_core_share),
        )
        for each in summary.kernels
    ]
    names = ("rank", "kernels", "a second", "mean", "launches", "in graphs", "queue", "tensor cores")
    return listed("Kernels by rank", per.words, numbers(*names), rows, max(top, NUM_OF_A_MACHINE))


def _copies(summary: TraceSummary, top: int) -> list[Piece]:
    """Show copies by kind, summed over the ranks and divided by the number of ranks."""
    per, num_ranks = Per.of(summary), len({copies.rank for copies in summary.copies}) or 1
    grouped = sorted(
        _grouped(summary.copies, key=lambda each: (each.kind, str(each.pinned))),
        key=lambda alike: -sum(map(_total, alike)),
    )
    rows = [_copies_of(alike, per, num_ranks) for alike in grouped]
    columns = [Column("kind"), *numbers("time", "exposed", "copies", "bytes", "median", "achieved")]
    detail = per.words + (f", mean of {num_ranks} ranks" if num_ranks > 1 else "")
    return listed("Copies", detail, columns, rows, top)


def _copies_of(alike: Sequence[Copies], per: Per, num_ranks: int) -> list[str]:
    first = alike[0]
    memory = "" if first.pinned is None else ", pinned" if first.pinned else ", pageable"
    num_bytes = [each.num_bytes for each in alike if each.num_bytes is not None]
    known = [each for each in alike if each.num_bytes and each.bytes_per_s]
    known_s = sum((each.num_bytes or 0) / (each.bytes_per_s or 1) for each in known)
    achieved = sum(each.num_bytes or 0 for each in known) / known_s if known_s else None
    return [
        first.kind + memory,
        per.time(sum(map(_total, alike)) / num_ranks),
        per.time(sum(each.exposed_s for each in alike) / num_ranks),
        per.count(sum(each.num for each in alike) / num_ranks),
        per.num_bytes(sum(num_bytes) / num_ranks if len(num_bytes) == len(alike) else None),
        words.num_bytes(first.median_bytes) if len(alike) == 1 and first.median_bytes is not None else "",
        words.bandwidth(achieved),
    ]


def _syncs(summary: TraceSummary, top: int) -> list[Piece]:
    return _calls("Calls that wait for the device", summary.syncs, summary, top)


def _allocations(summary: TraceSummary, top: int) -> list[Piece]:
    name = "Memory asked of CUDA inside steps" if summary.num_steps else "Memory asked of CUDA"
    return _calls(name, summary.allocations, summary, top)


def _calls(name: str, calls: Sequence[Calls], summary: TraceSummary, top: int) -> list[Piece]:
    """Show calls by place; for several ranks, each call is that of the rank which spent most time on it."""
    per = Per.of(summary)
    several = len({each.rank for each in calls}) > 1
    worst = [
        max(alike, key=_total)
        for alike in _grouped(calls, key=lambda each: (each.call, each.where.function, each.where.operator))
    ]
    rows = [
        (
            per.time(each.total_s),
            per.count(each.num),
            _rank(each.rank) if several else "",
            each.call,
            place(Place(each.where.function, each.where.operator)),
        )
        for each in sorted(worst, key=lambda each: -each.total_s)
    ]
    columns = [*numbers("time", "calls", "rank"), Column("call"), Column("from")]
    return listed(name, per.words + (", for the rank that spent most" if several else ""), columns, rows, top)


def _gaps(summary: TraceSummary, top: int) -> list[Piece]:
    devices = {(gap.rank, gap.device) for gap in summary.gaps}
    rows = [
        (
            _time(gap.duration_s),
            _time(gap.start_s),
            gap.cause,
            "" if len(devices) < 2 else _device_words(gap.rank, gap.device),
            place(gap.where),
        )
        for gap in sorted(summary.gaps, key=lambda gap: -gap.duration_s)
    ]
    columns = [*numbers("gap", "at"), Column("waits for"), Column("on"), Column("meanwhile")]
    return listed("Longest gaps", "in which the device ran nothing", columns, rows, top)


def _communication(summary: TraceSummary, top: int) -> list[Piece]:
    per = Per.of(summary)
    several = len(summary.communication) > 1
    rows = [
        (
            _rank(each.rank) if several else "",
            per.time(each.total_s),
            per.time(each.exposed_s),
            per.time(each.hidden_s),
            per.count(each.num),
        )
        for each in sorted(summary.communication, key=lambda each: -each.exposed_s)
        if each.num
    ]
    columns = numbers("rank", "time", "exposed", "hidden", "collectives")
    return listed("Communication", per.words, columns, rows, max(top, NUM_OF_A_MACHINE))


def _ranks(summary: TraceSummary, top: int) -> list[Piece]:
    if summary.ranks is None or not summary.ranks.ranks:
        return []
    per, ranks, late = Per.of(summary), summary.ranks, {one.rank for one in summary.ranks.stragglers}
    slowest_first = sorted(ranks.ranks, key=lambda each: (each.rank not in late, -(each.step_s or 0)))
    limit = max(top, NUM_OF_A_MACHINE)
    chosen = slowest_first if len(slowest_first) > limit else ranks.ranks
    rows: list[tuple[Cell, ...]] = [
        (
            _rank(each.rank),
            _time(each.step_s),
            per.time(each.busy_s),
            per.time(each.waits_s),
            "" if each.clock_offset_s is None else words.change(each.clock_offset_s),
            Span("the others wait for it", "wary") if each.rank in late else "",
        )
        for each in chosen
    ]
    columns = [*numbers("rank", "step", "busy", "waits", "clock"), Column("")]
    table = Table("", columns, rows, most=limit, all_by=f"--top {len(rows)}")
    known = [each for each in chosen if each.phase_s]
    own = [(_rank(each.rank), *(_time(each.phase_s.get(phase)) for phase in RANK_PHASES)) for each in known]
    detail = "in a step of median length, without waits and communication"
    phases = listed("Own time by phase", detail, numbers("rank", *RANK_PHASES), own, limit)
    told = ALIGNED[ranks.aligned_by]
    if ranks.imbalance is not None:
        told = f"The busiest rank computes {words.times(ranks.imbalance)} as long as the idlest. {told}"
    return [Section("Ranks", [table, Note(told, tone="dim")], aside=per.words), *phases]


def _operators(summary: TraceSummary, top: int) -> list[Piece]:
    """Show operators, summed over the ranks and divided by the number of ranks."""
    per, num_ranks = Per.of(summary), len(summary.ranks.ranks) if summary.ranks is not None else 1
    named = [
        (
            sum(each.self_s for each in alike) / num_ranks,
            sum(each.num for each in alike) / num_ranks,
            alike[0].name,
        )
        for alike in _grouped(summary.operators, key=lambda each: (each.name,))
    ]
    rows = [
        (
            per.time(self_s),
            words.fine_share(self_s / summary.window_s if summary.window_s else None),
            per.count(num),
            name,
        )
        for self_s, num, name in sorted(named, key=lambda row: (-row[0], row[2]))
    ]
    columns = [*numbers("own time", "of window", "calls"), Column("operator")]
    detail = per.words + (f", mean of {num_ranks} ranks" if num_ranks > 1 else "")
    return listed("Operators on the host", detail, columns, rows, top if summary.devices else 2 * top)


def _memory(summary: TraceSummary, top: int) -> list[Piece]:
    per = Per.of(summary)
    several = len(summary.memory) > 1
    rows = [
        (
            _device_words(each.rank, each.device) if several else "",
            words.num_bytes(each.peak_allocated_bytes),
            words.num_bytes(each.peak_reserved_bytes),
            per.count(each.num_allocations),
        )
        for each in sorted(summary.memory, key=lambda each: -each.peak_allocated_bytes)
    ]
    columns = [Column("on"), *numbers("peak allocated", "peak reserved", f"allocations {per.words}")]
    return listed("Memory", "", columns, rows, max(top, NUM_OF_A_MACHINE))


def _grouped(items: Iterable[T], key: Callable[[T], tuple[str, ...]]) -> list[list[T]]:
    return [list(alike) for _, alike in groupby(sorted(items, key=key), key=key)]


def _rank(rank: int | None) -> str:
    return "" if rank is None else str(rank)


def _time(seconds: float | None) -> str:
    return words.duration(seconds, column=True)


def _device_words(rank: int | None, device: int) -> str:
    on = "host" if device < 0 else f"device {device}"
    return on if rank is None else f"rank {rank}, {on}"
