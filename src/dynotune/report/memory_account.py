"""Lay out where a command's device memory goes: a bar of terms, what fits, and what would save memory."""

from __future__ import annotations

from dataclasses import replace

from dynotune.report.blocks import (
    Answer,
    Bar,
    BarRow,
    Bars,
    Cell,
    Column,
    CommandLine,
    Fields,
    Findings,
    Lines,
    Marked,
    Note,
    On,
    Piece,
    Report,
    Section,
    Segment,
    Span,
    Table,
    wary,
)
from dynotune.report.diagnosis import item
from dynotune.report.parts import OF_MEMORY
from dynotune.report.places import place, prose
from dynotune.schema.diagnosis import MemoryAccount
from dynotune.schema.facts import Unknown
from dynotune.schema.memory import Capacity, Moment, RankMemory, Term
from dynotune.schema.trace_summary import Place
from dynotune.text import words

NUM_FINDINGS = 6
NUM_PARTS = 3
NUM_LINES = 8
"""Number of source lines to show for a snapshot, which contains no other information."""
FAR = 16
"""Predictions beyond this multiple of the largest batch that was run are doubtful: the algorithms may
change."""
NOTABLE_BYTES = 256 << 20
"""Report memory of other processes from this size on: the driver keeps less for itself."""
VERDICTS = {"fits": "fits", "too-close": "too close", "does-not-fit": "does not fit"}
NOTHING = "–"


def layout(account: MemoryAccount) -> Report:
    """Lay out the whole account of memory."""
    about = [("snapshot", account.file) if account.file else ("command", words.command(account.command))]
    if account.pretended:
        about.append(("GPU", f"{account.pretended}, which is not here: all is predicted"))
    run = "run without a GPU" if account.pretended else "measured"
    findings = [item(finding, account.command or ["COMMAND"]) for finding in account.findings[:NUM_FINDINGS]]
    aside = "predicted; compare --objective memory proves it"
    notes = [*account.notes, *dict.fromkeys(note for rank in account.ranks for note in rank.notes)]
    return Report(
        kicker="dynotune memory",
        answer=_answer(account),
        command=words.shell(account.command),
        head=[Fields(about[:1], on=On.EVERYWHERE if account.file else On.TERMINAL), Fields(about[1:])],
        use=_use(account),
        sections=[
            *map(_rank, account.ranks),
            *([] if account.file else _capacity(account.capacity, run)),
            *([Section("What would save memory", [Findings(findings)], aside=aside)] if findings else []),
            *wary(map(prose, notes), "note"),
        ],
        footer="dynotune memory --json FILE writes all that is shown here.",
    )


def _answer(account: MemoryAccount) -> Answer:
    """Say how much memory the fullest rank needs at its peak, and the largest batch that fits."""
    peaks = [rank.peak for rank in account.ranks if isinstance(rank.peak, Moment)]
    if not peaks:
        reason = next(
            (rank.peak.reason for rank in account.ranks if isinstance(rank.peak, Unknown)), "nothing was seen"
        )
        sentence = f"The peak of memory is not known: {reason}."
        return Answer(large="Unknown", line=sentence, sentence=sentence, tone="wary")
    peak = max(peaks, key=lambda one: one.total_bytes)
    size = words.num_bytes(peak.total_bytes)
    largest = max(peak.terms, key=lambda term: term.num_bytes, default=None)
    mostly = "" if largest is None else f", most of it {OF_MEMORY[largest.name].label}"
    sentence = f"The peak is {size}{mostly}."
    if isinstance(account.capacity, Capacity) and not isinstance(account.capacity.largest, Unknown):
        sentence += f" The largest batch that fits on {account.capacity.card}: {account.capacity.largest}."
    return Answer(large=size, rest="of device memory at the peak", sentence=sentence, line=sentence)


def _use(account: MemoryAccount) -> list[CommandLine]:
    """Return the line that says what fits, if that is not known and the command is."""
    if account.file or not isinstance(account.capacity, Unknown) or not account.command:
        return []
    option = "--batch-size"
    line = [
        "dynotune",
        "memory",
        "--values",
        "arg.batch=8,16",
        "--",
        *words.shell(account.command),
        option,
        "{batch}",
    ]
    what = "To see what fits, run two batch sizes, with the program's own option in place of --batch-size"
    return [CommandLine(what, line)]


def _rank(rank: RankMemory) -> Section:
    who = f"GPU {rank.device}" if rank.rank is None else f"Rank {rank.rank}, GPU {rank.device}"
    if isinstance(rank.peak, Unknown):
        return Section(who, [Note(f"The peak is not known: {rank.peak.reason}")])
    steady = rank.steady if isinstance(rank.steady, Moment) else None
    rows: list[list[Cell]] = [
        [
            Marked(OF_MEMORY[term.name], OF_MEMORY[term.name].label),
            words.num_bytes(term.num_bytes),
            words.fine_share(term.num_bytes / max(1, rank.peak.total_bytes)),
            ""
            if steady is None
            else words.num_bytes(steady.of(term.name))
            if steady.of(term.name)
            else NOTHING,
            _whose(term),
        ]
        for term in rank.peak.terms
    ]
    after = "between" if rank.trains is not None else "at the end"
    numbers = ("peak", "", after)
    header = [Column(""), *(Column(name, "number") for name in numbers), Column("mostly")]
    sizes = tuple(Segment(part, rank.peak.of(name)) for name, part in OF_MEMORY.items())
    bars = Bars(f"Memory of {who} at the peak, by what holds it", [BarRow("", "", Bar(sizes))])
    cost: list[Piece] = []
    if rank.step_s is not None:
        before = "" if rank.before_s is None else f", those before {words.duration(rank.before_s)}"
        cost.append(Note(f"recorded steps took {words.duration(rank.step_s)}{before}", tone="dim"))
    return Section(who, [bars, Table("", header, rows), *cost], aside=_said(rank, rank.peak))


def _said(rank: RankMemory, peak: Moment) -> str:
    kind = {True: "training", False: "inference", None: ""}[rank.trains]
    batch = f" with {rank.num_samples} samples per step" if rank.num_samples else ""
    whole = "reserved, without the context" if isinstance(peak.process_bytes, Unknown) else "of the process"
    told = f"{kind}{batch}: " if kind else ""
    told += f"{words.num_bytes(peak.total_bytes)} {whole} at the peak"
    if rank.spread_bytes:
        told += f" (± {words.num_bytes(rank.spread_bytes)})"
    if rank.total_bytes is not None:
        told += f", of {words.num_bytes(rank.total_bytes)}"
    if not isinstance(rank.others_bytes, Unknown) and rank.others_bytes >= NOTABLE_BYTES:
        told += f"; others hold {words.num_bytes(rank.others_bytes)}"
    return told


def _whose(term: Term) -> Cell:
    """Name the modules with most of a term's memory, else the source line; for a snapshot, source lines with
    sizes."""
    if term.modules and term.name != "blocks":
        told: list[str | Span] = []
        for name, size in list(term.modules.items())[:NUM_PARTS]:
            module = Span(words.plain(name, longest=60), "code")
            told += [", " if told else "", module, f" {words.num_bytes(size)}"]
        return tuple(told)
    lines = list(term.lines.items())
    if term.name == "blocks":
        sized = ((words.num_bytes(size), place(Place(function=line))) for line, size in lines[:NUM_LINES])
        return Lines(tuple((f"{size} ", *where) for size, where in sized if isinstance(where, tuple)))
    return place(Place(function=lines[0][0])) if lines else ""


def _capacity(found: Capacity | Unknown, run: str) -> list[Piece]:
    if isinstance(found, Unknown):
        unknown = Note(f"What fits is not known: {found.reason}.", tone="dim")
        return [replace(unknown, on=On.TERMINAL), Section("What fits", [unknown], on=On.PAGE)]
    rows: list[list[Cell]] = [
        [
            f"batch {fit.batch}",
            words.num_bytes(fit.num_bytes if isinstance(fit.measured_bytes, Unknown) else fit.measured_bytes),
            "predicted" if isinstance(fit.measured_bytes, Unknown) else run,
            VERDICTS[fit.verdict],
        ]
        for fit in found.fits
    ]
    margin = f"{words.num_bytes(found.limit_bytes)}, with {words.num_bytes(found.margin_bytes)} kept free"
    blocks: list[Piece] = []
    if not isinstance(found.largest, Unknown):
        far = found.largest / max([1, *found.measured])
        unsure = f", {far:.0f} times what was run: run it, too" if far > FAR else ""
        blocks.append(Note((Span(f"The largest batch that fits: {found.largest}", "strong"), unsure)))
    header = [Column(""), Column("", "number"), Column(""), Column("")]
    blocks.append(Table("", header, rows, cards=False))
    return [Section(f"What fits on {found.card}", blocks, aside=margin)]
