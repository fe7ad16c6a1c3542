"""Where a command's device memory goes, in one screen: a bar of terms, what fits, and what would save memory."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from dynotune.report.findings import finding_lines
from dynotune.report.trace_parts import place, prose, rows_of, title
from dynotune.schema.facts import Unknown
from dynotune.schema.memory import Capacity, HookCost, Moment, Processes, Proof, RankMemory, Term, TermName
from dynotune.schema.memory_account import MemoryAccount
from dynotune.schema.trace_summary import Place
from dynotune.text import words

__all__ = ["LABELS", "memory_report"]

NUM_FINDINGS = 6
NUM_PARTS = 3
FAR = 16
"""Times the largest batch that was run: the program may choose other algorithms there."""
NOTABLE_BYTES = 256 << 20
"""Of others: the driver keeps less than that for itself."""
WIDEST = 100
LABELS: dict[TermName, str] = {
    "context": "CUDA context, loaded modules, NCCL",
    "workspaces": "workspaces of cuBLAS",
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer states",
    "buffers": "buffers",
    "inputs": "inputs",
    "activations": "activations",
    "temporary": "temporary buffers",
    "kept": "other tensors of the program",
    "graph-pools": "pools of CUDA graphs",
    "rounding": "rounding by the allocator",
    "cache": "cache of the allocator",
    "fragmentation": "free between blocks in use",
    "unknown": "unknown",
}
STYLES: dict[TermName, str] = {
    "context": "white",
    "workspaces": "bright_black",
    "weights": "green",
    "gradients": "yellow",
    "optimizer": "magenta",
    "buffers": "bright_green",
    "inputs": "cyan",
    "activations": "blue",
    "temporary": "bright_blue",
    "kept": "bright_cyan",
    "graph-pools": "bright_magenta",
    "rounding": "bright_black",
    "cache": "bright_black",
    "fragmentation": "red",
    "unknown": "bright_red",
}


def memory_report(account: MemoryAccount) -> RenderableType:
    """The whole answer."""
    parts: list[RenderableType] = [rows_of([("", "left"), ("", "place")], [_head(account)])]
    for rank in account.ranks:
        parts += _rank(rank, several=len(account.ranks) > 1)
    parts += _capacity(account.capacity)
    if isinstance(account.processes, Processes):
        parts.append(_beside(account.processes))
    if account.findings:
        lines = [finding_lines(finding) for finding in account.findings[:NUM_FINDINGS]]
        parts.append(Group(title("What would save memory", "predicted; compare --objective memory proves it"), *lines))
    notes = [*account.notes, *dict.fromkeys(note for rank in account.ranks for note in rank.notes)]
    if notes:
        parts.append(Text("\n").join(Text.assemble(("note: ", "yellow"), prose(note)) for note in notes))
    return Group(*(piece for part in parts for piece in (part, Text())))


def _head(account: MemoryAccount) -> Sequence[str | Text]:
    return Text("command", style="dim"), Text(words.plain(words.command(account.command)))


def _rank(rank: RankMemory, *, several: bool) -> list[RenderableType]:
    who = f"Rank {rank.rank}, GPU {rank.device}" if several else f"GPU {rank.device}"
    if isinstance(rank.peak, Unknown):
        return [Group(title(who), Text(f"The peak is not known: {words.plain(rank.peak.reason)}"))]
    steady = rank.steady if isinstance(rank.steady, Moment) else None
    rows = [
        (
            Text("■", style=STYLES[term.name]),
            LABELS[term.name],
            words.num_bytes(term.num_bytes),
            words.fine_share(term.num_bytes / max(1, rank.peak.total_bytes)),
            "" if steady is None else words.num_bytes(steady.of(term.name)) if steady.of(term.name) else "–",
            _whose(term),
        )
        for term in rank.peak.terms
    ]
    columns = [("", "left"), ("", "left"), ("peak", "right"), ("", "right"), ("between", "right"), ("mostly", "place")]
    return [Group(title(who, _said(rank, rank.peak)), _Bar(rank.peak), rows_of(columns, rows), _hooks(rank.hooks))]


def _said(rank: RankMemory, peak: Moment) -> str:
    kind = "training" if rank.trains else "inference"
    batch = f" with {rank.num_samples} samples a step" if rank.num_samples else ""
    whole = "reserved, without the context" if isinstance(peak.process_bytes, Unknown) else "of the process"
    told = f"{kind}{batch}: {words.num_bytes(peak.total_bytes)} {whole} at the peak"
    told += f", of {words.num_bytes(rank.total_bytes)}"
    if not isinstance(rank.others_bytes, Unknown) and rank.others_bytes >= NOTABLE_BYTES:
        told += f"; others hold {words.num_bytes(rank.others_bytes)}"
    return told


def _whose(term: Term) -> Text:
    """The modules that a term is mostly of, else the line."""
    if term.modules:
        told = [f"{words.plain(part.name, longest=60)} {words.num_bytes(part.num_bytes)}" for part in term.modules]
        return Text(", ".join(told[:NUM_PARTS]), style="cyan")
    return place(Place(function=term.lines[0].name)) if term.lines else Text()


def _hooks(cost: HookCost) -> Text:
    told = f"recorded steps took {words.duration(cost.step_s)}"
    if cost.before_s is not None:
        told += f", those before {words.duration(cost.before_s)}"
    told += f"; recording held {words.num_bytes(cost.host_bytes)} of the host and none of the GPU"
    return Text(told, style="dim")


class _Bar:
    """Terms as one bar; each that is not nothing has a column where there is room."""

    def __init__(self, moment: Moment) -> None:
        self._moment = moment

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, total = min(options.max_width, WIDEST), max(1, self._moment.total_bytes)
        bar, done, drawn = Text(no_wrap=True, overflow="crop"), 0, 0
        for term in self._moment.terms:
            done += max(0, term.num_bytes)
            cells = round(width * done / total) - drawn
            drawn += cells
            letter = LABELS[term.name][0] if options.ascii_only else "█"
            bar.append(letter * cells, style=STYLES[term.name])
        yield bar


def _capacity(found: Capacity | Unknown) -> list[RenderableType]:
    if isinstance(found, Unknown):
        return [Text(f"What fits is not known: {words.plain(found.reason)}.", style="dim")]
    measured = {one.batch for one in found.measured}
    rows = [
        (
            f"batch {fit.batch}",
            words.num_bytes(fit.num_bytes if isinstance(fit.measured_bytes, Unknown) else fit.measured_bytes),
            "measured" if fit.batch in measured else "predicted",
            {"fits": "fits", "too-close": "too close", "does-not-fit": "does not fit"}[fit.verdict],
        )
        for fit in found.fits
    ]
    margin = f"{words.num_bytes(found.limit_bytes)}, with {words.num_bytes(found.margin_bytes)} kept free"
    lines: list[RenderableType] = [title(f"What fits on {words.plain(found.card)}", margin)]
    if not isinstance(found.largest, Unknown):
        far = found.largest / max(measured)
        unsure = f", {far:.0f} times what was run: --fill proves it" if far > FAR and found.proof is None else ""
        lines.append(Text.assemble((f"The largest batch that fits: {found.largest}", "bold"), unsure))
    lines.append(rows_of([("", "left"), ("", "right"), ("", "left"), ("", "left")], rows))
    if found.proof is not None:
        lines.append(Text(_proved(found.proof)))
    return [Group(*lines)]


def _beside(found: Processes) -> RenderableType:
    each = "" if found.asked_per_s is None else f", for {found.asked_per_s:g} a second each"
    memory = "unknown" if isinstance(found.by_memory, Unknown) else str(found.by_memory)
    told = f"by memory {memory}, by throughput {found.by_throughput}: one makes {found.one_per_s:.4g} a second, "
    told += f"two together {found.two_per_s:.4g}"
    return Group(title("Processes on one GPU", f"{found.most}{each}"), Text(told))


def _proved(proof: Proof) -> str:
    ended = {"out-of-memory": "ran out of memory", "over-margin": "left less than the margin free", "fits": "fits, too"}
    first = f"ran {proof.num_steps} steps" if proof.ran else "ran out of memory"
    return f"Run: a batch of {proof.batch} {first}; {proof.next_batch} {ended[proof.next_ended]}."
