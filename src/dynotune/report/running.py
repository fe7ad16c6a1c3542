"""Lay out what was seen of a program that runs already."""

from __future__ import annotations

from collections.abc import Sequence

from dynotune.report import diagnosis as diagnoses
from dynotune.report.blocks import (
    Answer,
    Column,
    Fields,
    Findings,
    Note,
    On,
    Piece,
    Report,
    Section,
    Span,
    Table,
    wary,
)
from dynotune.report.places import prose
from dynotune.schema.facts import NOT_ASKED, Unknown
from dynotune.schema.running import RankView, RunningDiagnosis, Stacks
from dynotune.schema.watch import ProcessView
from dynotune.text import words

LEAST_PRESSURE = 0.1
MOST_PROCESSES = 24
NUM_EVIDENCE_IN_BRIEF = 4


def layout(diagnosis: RunningDiagnosis) -> Report:
    """Lay out what the verdict rests on, the processes, the findings on the environment, and the rungs."""
    verdict, rungs = prose(diagnosis.verdict), (diagnosis.reached, diagnosis.next_rung)
    return Report(
        kicker="dynotune diagnose --pid",
        answer=Answer(large=diagnosis.part.capitalize(), line=verdict, sentence=verdict),
        command=words.shell(diagnosis.command),
        head=[Fields(_head(diagnosis))],
        sections=[
            *([_ranks(diagnosis.ranks)] if len(diagnosis.ranks) > 1 else []),
            _evidence(diagnosis),
            *_lines(diagnosis.stacks),
            _processes(diagnosis.ranks),
            *_environment(diagnosis),
            *_recorded(diagnosis),
            *wary(map(prose, diagnosis.notes), "note"),
            *(Note(prose(rung), tone="dim", on=On.TERMINAL) for rung in rungs),
            Section("How far this looked", [Note(prose(rung)) for rung in rungs], on=On.PAGE),
        ],
        footer="dynotune diagnose --pid PID --json FILE writes all that is shown here.",
    )


def _head(diagnosis: RunningDiagnosis) -> list[tuple[str, str | Span]]:
    return [
        ("process", f"{diagnosis.pid}, looked at for {words.duration(diagnosis.observed_s)}"),
        ("command", words.command(diagnosis.command)),
        ("part", Span(diagnosis.part, "strong")),
    ]


def _ranks(ranks: Sequence[RankView]) -> Section:
    header = [
        Column("rank", "number"),
        Column("process", "number"),
        Column("GPU"),
        Column("busy", "number"),
        Column("part", "whole"),
        Column(""),
    ]
    rows = []
    for one in ranks:
        busy = "" if isinstance(one.device_busy, Unknown) else words.share(one.device_busy)
        gpus = ", ".join(map(str, one.gpus))
        rank = words.UNKNOWN if one.rank is None else str(one.rank)
        rows.append([rank, str(one.pid), gpus, busy, one.part, prose(one.told)])
    return Section("Ranks", [Table("", header, rows)], aside=f"{len(ranks)} of this host")


def _evidence(diagnosis: RunningDiagnosis) -> Section:
    lines = list(diagnosis.ranks[0].evidence)
    lines += [
        f"pressure: at least one process waits for {name} {words.share(share)} of the time"
        for name, share in diagnosis.pressure.items()
        if share >= LEAST_PRESSURE
    ]
    if isinstance(diagnosis.throttled_share, float) and diagnosis.throttled_share > 0:
        stops = f"{diagnosis.throttled_share:.2f} s of each second, all cores together"
        lines.append(f"its CPU quota stops it for {stops}")
    notes = [
        Note(prose(line), tone="dim", on=On.EVERYWHERE if at < NUM_EVIDENCE_IN_BRIEF else On.ALL_OF_IT)
        for at, line in enumerate(lines)
    ]
    return Section("What this rests on", notes)


def _lines(stacks: Stacks | Unknown) -> list[Piece]:
    if isinstance(stacks, Unknown):
        return (
            []
            if stacks == NOT_ASKED
            else [Note(f"Stacks: unknown, {stacks.reason}", tone="dim", on=On.TERMINAL)]
        )
    rows = [
        [words.share(line.share), line.thread, line.place + (" (in the loader)" if line.in_loader else "")]
        for line in stacks.lines
    ]
    header = [Column("looks", "number"), Column("thread", "whole"), Column("line")]
    aside = f"{stacks.num} looks; the program was not stopped"
    return [Section("Lines that run", [Table("", header, rows)], aside=aside)]


def _processes(ranks: Sequence[RankView]) -> Section:
    names = ("cores", "threads", "memory", "reads")
    numbers = [Column(name, "number") for name in names]
    header = [Column("process", "number"), Column("role", "whole"), *numbers, Column("", "name")]
    views = [view for rank in ranks for view in rank.processes]
    left = len(views) - MOST_PROCESSES
    more = f"and {left} more" if left > 0 else ""
    table = Table("", header, [_row(view) for view in views[:MOST_PROCESSES]], more=more)
    return Section("Processes", [table])


def _row(view: ProcessView) -> list[str]:
    cores = words.UNKNOWN if view.cores is None else f"{view.cores:.2f}"
    reads = words.UNKNOWN if view.read_bytes_per_s is None else f"{words.num_bytes(view.read_bytes_per_s)}/s"
    memory = words.num_bytes(view.rss_bytes)
    return [str(view.pid), view.role, cores, str(view.num_threads), memory, reads, view.state]


def _environment(diagnosis: RunningDiagnosis) -> list[Piece]:
    if not diagnosis.findings:
        return []
    items = [diagnoses.item(finding, diagnosis.command) for finding in diagnosis.findings]
    return [Section("Its environment", [Findings(items)], aside="findings on machine and variables")]


def _recorded(diagnosis: RunningDiagnosis) -> list[Piece]:
    """Lay out the steps that the program recorded itself, as a diagnosis."""
    if isinstance(diagnosis.recorded, Unknown):
        return []
    recorded = diagnoses.layout(diagnosis.recorded)
    verdict = Section("Recorded steps", [Note(recorded.answer.sentence)])
    return [verdict, *recorded.sections]
