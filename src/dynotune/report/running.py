"""Show in the terminal what was seen of a program that runs already."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from dynotune.report.diagnosis import diagnosis_report
from dynotune.report.layout import fields, finding_lines, spaced, table
from dynotune.report.loudness import is_brief
from dynotune.report.trace_parts import prose, title
from dynotune.schema.facts import NOT_ASKED, Unknown
from dynotune.schema.running import RankView, RunningDiagnosis, Stacks
from dynotune.schema.watch import ProcessView
from dynotune.text import words

LEAST_PRESSURE = 0.1
MOST_PROCESSES = 24


def running_report(diagnosis: RunningDiagnosis) -> RenderableType:
    """Show the verdict, what it rests on, the processes, the findings on the environment, and the rungs."""
    parts: list[RenderableType] = [
        _head(diagnosis),
        *([_ranks(diagnosis.ranks)] if len(diagnosis.ranks) > 1 else []),
        *_evidence(diagnosis),
        *_lines(diagnosis.stacks),
        _processes(diagnosis.ranks),
    ]
    if diagnosis.findings:
        findings = spaced(finding_lines(finding) for finding in diagnosis.findings)
        parts.append(Group(title("Its environment", "findings on machine and variables"), findings))
    if not isinstance(diagnosis.recorded, Unknown):
        parts.append(Group(title("Recorded steps", ""), diagnosis_report(diagnosis.recorded)))
    parts += [Text.assemble(("note: ", "yellow"), prose(note)) for note in diagnosis.notes]
    parts.append(Group(prose(diagnosis.reached, style="dim"), prose(diagnosis.next_rung, style="dim")))
    return spaced(parts)


def _head(diagnosis: RunningDiagnosis) -> RenderableType:
    return fields(
        [
            ("process", f"{diagnosis.pid}, looked at for {words.duration(diagnosis.observed_s)}"),
            ("command", words.plain(words.command(diagnosis.command))),
            ("part", Text(diagnosis.part, style="bold")),
            ("verdict", prose(diagnosis.verdict, style="bold")),
        ]
    )


def _ranks(ranks: Sequence[RankView]) -> RenderableType:
    rows = table("rank:number", "process:number", "GPU:text", "busy:number", "part:whole", ":wide")
    for one in ranks:
        busy = "" if isinstance(one.device_busy, Unknown) else words.share(one.device_busy)
        gpus = ", ".join(map(str, one.gpus))
        rank = words.UNKNOWN if one.rank is None else str(one.rank)
        rows.add_row(rank, str(one.pid), gpus, busy, one.part, prose(one.told))
    return Group(title("Ranks", f"{len(ranks)} of this host"), rows)


def _evidence(diagnosis: RunningDiagnosis) -> list[RenderableType]:
    lines = list(diagnosis.ranks[0].evidence)
    lines += [
        f"pressure: some process waits for {name} {words.share(share)} of the time"
        for name, share in diagnosis.pressure.items()
        if share >= LEAST_PRESSURE
    ]
    if isinstance(diagnosis.throttled_share, float) and diagnosis.throttled_share > 0:
        lines.append(
            f"its CPU quota stops it for {diagnosis.throttled_share:.2f} s of each second, all cores together"
        )
    if is_brief():
        lines = lines[:4]
    return [Group(title("What this rests on", ""), *(prose(line, style="dim") for line in lines))]


def _lines(stacks: Stacks | Unknown) -> list[RenderableType]:
    if isinstance(stacks, Unknown):
        return (
            []
            if stacks == NOT_ASKED
            else [Text(f"Stacks: unknown, {words.plain(stacks.reason)}", style="dim")]
        )
    rows = table("looks:number", "thread:whole", "line:wide")
    for line in stacks.lines:
        inside = " (in the loader)" if line.in_loader else ""
        rows.add_row(words.share(line.share), line.thread, words.plain(line.place) + inside)
    return [Group(title("Lines that run", f"{stacks.num} looks, the program was not stopped"), rows)]


def _processes(ranks: Sequence[RankView]) -> RenderableType:
    rows = table(
        "process:number",
        "role:whole",
        "cores:number",
        "threads:number",
        "memory:number",
        "reads:number",
        ":dim",
    )
    views = [view for rank in ranks for view in rank.processes]
    for view in views[:MOST_PROCESSES]:
        rows.add_row(*_row(view))
    left = (
        [Text(f"and {len(views) - MOST_PROCESSES} more", style="dim")] if len(views) > MOST_PROCESSES else []
    )
    return Group(title("Processes", ""), rows, *left)


def _row(view: ProcessView) -> list[str]:
    cores = words.UNKNOWN if view.cores is None else f"{view.cores:.2f}"
    reads = words.UNKNOWN if view.read_bytes_per_s is None else f"{words.num_bytes(view.read_bytes_per_s)}/s"
    memory = words.num_bytes(view.rss_bytes)
    return [str(view.pid), words.plain(view.role), cores, str(view.num_threads), memory, reads, view.state]
