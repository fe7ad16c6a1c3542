"""Show where a command's device memory goes, on one screen: a bar of terms, what fits, and what would save
memory."""

from types import SimpleNamespace

from rich.console import Group, RenderableType
from rich.text import Text

from dynotune.report.bars import Bar, Part
from dynotune.report.layout import fields, finding_lines, spaced
from dynotune.report.trace_parts import place, prose, rows_of, title
from dynotune.schema.diagnosis import MemoryAccount
from dynotune.schema.facts import Unknown
from dynotune.schema.memory import Capacity, Moment, RankMemory, Term, TermName
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
# fmt: off
_LOOKS: dict[TermName, tuple[str, str]] = {
    "weights": ("weights", "#2e7d32"), "gradients": ("gradients", "#c9a227"),
    "optimizer": ("optimizer states", "#8e4585"), "buffers": ("buffers", "#7cb342"), "inputs": ("inputs", "#00838f"),  # noqa: E501
    "activations": ("activations", "#1565c0"), "temporary": ("temporary buffers", "#64b5f6"),
    "kept": ("other tensors of the program", "#4db6ac"), "workspaces": ("workspaces of cuBLAS", "#78909c"),
    "blocks": ("blocks in use", "#1565c0"), "graph-pools": ("pools of CUDA graphs", "#d81b60"),
    "rounding": ("rounding by the allocator", "#9e9e9e"), "cache": ("cache of the allocator", "#bdbdbd"),
    "fragmentation": ("free between blocks in use", "#e64a19"),
    "context": ("CUDA context, loaded modules, NCCL", "#90a4ae"), "unknown": ("unknown", "#c62828"),
}
# fmt: on
LOOKS = {name: Part(name, label, "█", label[0], colour) for name, (label, colour) in _LOOKS.items()}
"""Name, label and character of each memory term on the screen and on the page."""


def memory_report(account: MemoryAccount) -> RenderableType:
    """Show the whole account of memory."""
    about = [("snapshot", account.file) if account.file else ("command", words.command(account.command))]
    if account.pretended:
        about.append(("GPU", f"{account.pretended}, which is not here: all is predicted"))
    parts: list[RenderableType] = [fields((what, words.plain(text)) for what, text in about)]
    parts += map(_rank, account.ranks)
    if not account.file:
        parts.append(_capacity(account.capacity, "run without a GPU" if account.pretended else "measured"))
    if account.findings:
        lines = [finding_lines(finding) for finding in account.findings[:NUM_FINDINGS]]
        parts.append(
            Group(title("What would save memory", "predicted; compare --objective memory proves it"), *lines)
        )
    notes = [*account.notes, *dict.fromkeys(note for rank in account.ranks for note in rank.notes)]
    if notes:
        parts.append(Text("\n").join(Text.assemble(("note: ", "yellow"), prose(note)) for note in notes))
    return spaced(parts)


def _rank(rank: RankMemory) -> RenderableType:
    who = f"GPU {rank.device}" if rank.rank is None else f"Rank {rank.rank}, GPU {rank.device}"
    if isinstance(rank.peak, Unknown):
        return Group(title(who), Text(f"The peak is not known: {words.plain(rank.peak.reason)}"))
    steady = rank.steady if isinstance(rank.steady, Moment) else None
    rows = [
        (
            Text("■", style=LOOKS[term.name].style),
            LOOKS[term.name].label,
            words.num_bytes(term.num_bytes),
            words.fine_share(term.num_bytes / max(1, rank.peak.total_bytes)),
            "" if steady is None else words.num_bytes(steady.of(term.name)) if steady.of(term.name) else "–",
            _whose(term),
        )
        for term in rank.peak.terms
    ]
    after = "between" if rank.trains is not None else "at the end"
    columns = [
        ("", "left"),
        ("", "left"),
        ("peak", "right"),
        ("", "right"),
        (after, "right"),
        ("mostly", "place"),
    ]
    cost = []
    if rank.step_s is not None:
        before = "" if rank.before_s is None else f", those before {words.duration(rank.before_s)}"
        cost.append(Text(f"recorded steps took {words.duration(rank.step_s)}{before}", style="dim"))
    sizes = SimpleNamespace(**{name: rank.peak.of(name) for name in LOOKS})
    return Group(
        title(who, _said(rank, rank.peak)), Bar(list(LOOKS.values()), sizes), rows_of(columns, rows), *cost
    )


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


def _whose(term: Term) -> Text:
    """Name the modules with most of a term's memory, else the source line; for a snapshot, source lines with
    sizes."""
    if term.modules and term.name != "blocks":
        told = [
            f"{words.plain(name, longest=60)} {words.num_bytes(size)}" for name, size in term.modules.items()
        ]
        return Text(", ".join(told[:NUM_PARTS]), style="cyan")
    lines = list(term.lines.items())
    if term.name == "blocks":
        sized = ((words.num_bytes(size), place(Place(function=line))) for line, size in lines[:NUM_LINES])
        return Text("\n").join(Text.assemble(f"{size} ", where) for size, where in sized)
    return place(Place(function=lines[0][0])) if lines else Text()


def _capacity(found: Capacity | Unknown, run: str) -> RenderableType:
    if isinstance(found, Unknown):
        return Text(f"What fits is not known: {words.plain(found.reason)}.", style="dim")
    rows = [
        (
            f"batch {fit.batch}",
            words.num_bytes(fit.num_bytes if isinstance(fit.measured_bytes, Unknown) else fit.measured_bytes),
            "predicted" if isinstance(fit.measured_bytes, Unknown) else run,
            {"fits": "fits", "too-close": "too close", "does-not-fit": "does not fit"}[fit.verdict],
        )
        for fit in found.fits
    ]
    margin = f"{words.num_bytes(found.limit_bytes)}, with {words.num_bytes(found.margin_bytes)} kept free"
    lines: list[RenderableType] = [title(f"What fits on {words.plain(found.card)}", margin)]
    if not isinstance(found.largest, Unknown):
        far = found.largest / max([1, *found.measured])
        unsure = f", {far:.0f} times what was run: run it, too" if far > FAR else ""
        lines.append(Text.assemble((f"The largest batch that fits: {found.largest}", "bold"), unsure))
    lines.append(rows_of([("", "left"), ("", "right"), ("", "left"), ("", "left")], rows))
    return Group(*lines)
