"""Lay out timed starts: what a warm cache saves, and where a start goes; and show their progress."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rich.text import Text

from dynotune.report import machine
from dynotune.report.blocks import (
    Answer,
    Bar,
    BarRow,
    Bars,
    Cell,
    Column,
    Fields,
    Findings,
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
from dynotune.report.comparison import VERDICT_TONES
from dynotune.report.diagnosis import item
from dynotune.report.parts import START
from dynotune.report.progress import Progress
from dynotune.schema.caches import TITLES, Cache
from dynotune.schema.facts import Unknown
from dynotune.schema.startup import (
    CACHE_STATES,
    PHASES,
    CacheState,
    Phase,
    Ratio,
    Start,
    StartBlock,
    StartChange,
    Startup,
    VoidBlock,
    median,
    phase_s,
)
from dynotune.text import words

TIME_TITLES: dict[CacheState, str] = {"cold": "caches cold", "warm": "warm", "off": "off"}
LEAST_IN_PICTURE = 0.01
"""Smallest phase in the picture of a start, as a share of the longest start."""
NUM_IMPORTS = 4
NOTHING = "–"


class StartProgress(Progress):
    """Show the progress of a running `startup time`."""

    def started(self, block: StartBlock, *, number: int, max_blocks: int) -> None:
        self.clear()
        values = ", ".join(f"{arm} {words.duration(block.of(arm).value_s)}" for arm in CACHE_STATES)
        self._console.print(
            Text.assemble((f"block {number:>2}/{max_blocks}  ", "dim"), values), soft_wrap=True
        )

    def voided_block(self, voided: VoidBlock) -> None:
        self.clear()
        self._console.print(
            Text.assemble((f"block {voided.block:>2} void: ", "yellow"), voided.reason), soft_wrap=True
        )


def layout(startup: Startup) -> Report:
    pattern = startup.run.ready_pattern
    until = f"a line that matches {pattern!r}" if pattern else startup.step or "the first step"
    ratios = [_ratio(ratio) for ratio in startup.ratios]
    set_rows = [[Span(setting, "strong"), Span(why, "dim")] for setting, why in startup.to_set.items()]
    to_set = Table("", [Column("", "code"), Column("")], set_rows)
    findings = Findings([item(finding, startup.run.command) for finding in startup.findings])
    return Report(
        kicker="dynotune startup time",
        answer=_answer(startup),
        command=words.shell(startup.run.command),
        head=[
            Fields([("command", words.command(startup.run.command))], on=On.LONG),
            Fields([("until", until), *ratios, *map(_change, startup.changes)]),
        ],
        sections=[
            *_picture(startup),
            _phases(startup),
            *_caches(startup),
            *([Section("What follows", [*map(Note, startup.said)], on=On.PAGE)] if startup.said else []),
            *(Note(text, on=On.TERMINAL) for text in startup.said),
            *([Section("To set", [to_set])] if startup.to_set else []),
            *([Section("Findings", [findings])] if startup.findings else []),
            *_notes(startup),
            machine.section(startup.facts),
        ],
        footer="All that is shown here is in startup.json.",
    )


def _answer(startup: Startup) -> Answer:
    """Say how long a start takes, what most of it is, and what a warm cache saves."""
    warm = startup.starts("warm")
    if not warm:
        sentence = "No start was timed."
        return Answer(large="Not timed", line=sentence, sentence=sentence, tone="wary")
    whole_s = statistics.median(start.value_s for start in warm)
    named, longest_s = _longest(warm)
    mostly = f": {named} {words.duration(longest_s)}" if named else ""
    took = f"A start takes {words.duration(whole_s)} with warm caches{mostly}."
    cold = startup.ratio("cold")
    saves = ""
    if cold is not None and cold.verdict == "faster" and cold.saved_s is not None:
        saves = f" A cold start takes {words.duration(cold.saved_s)} more."
    elif (cold is not None and cold.verdict == "same") or (
        cold is None and not any(start.added for start in startup.pilots)
    ):
        saves = " Caches do not matter here."
    if startup.findings:
        saves += f" {startup.findings[0].claim}"
    return Answer(
        large=words.duration(whole_s),
        rest="from the launch with warm caches",
        sentence=took + saves,
        line=took + saves,
    )


def _longest(starts: Sequence[Start]) -> tuple[str, float]:
    """Return the longest named phase of these starts in words, with the module that takes most of imports,
    and its seconds; ("", 0.0) if no phase took time."""
    known = {phase: took for phase in PHASES if isinstance(took := phase_s(starts, phase), float) and took}
    known.pop("other", None)  # "the rest" says nothing
    if not known:
        return "", 0.0
    phase: Phase = max(known, key=lambda name: known[name])
    name = PHASES[phase]
    if phase in ("imports", "imports_before_torch") and starts[0].imports:
        module, took_s = starts[0].imports[0]
        name += f" ({module} {words.duration(took_s)})"
    return name, known[phase]


def _ratio(ratio: Ratio) -> tuple[str, tuple[str | Span, ...]]:
    what = {"cold": "cold over warm", "off": "off over warm", "warm": "warm"}[ratio.arm]
    verdict = ratio.verdict or "no verdict"
    measured = ratio.ratio is not None
    said = f"warm is {verdict}" if verdict in ("faster", "slower") else verdict
    return what, (
        Span(f"{words.times(ratio.ratio)} " if measured else "", "strong"),
        f"({words.interval(ratio.ci)}) " if ratio.ci is not None else "",
        Span(said, VERDICT_TONES[ratio.verdict]),
        f", {ratio.num_blocks} blocks",
        Span(f"  {ratio.reason}" if ratio.reason else "", "dim"),
    )


def _change(change: StartChange) -> tuple[str, tuple[str | Span, ...]]:
    return f"{change.arm} since", (
        Span(f"{words.times(change.ratio, digits=3)} ", "strong"),
        f"({words.interval(change.ci)}) " if change.ci is not None else "",
        Span(change.verdict, VERDICT_TONES[change.verdict]),
        f", {change.num_now} starts now, {change.num_before} in the kept record",
        Span(f"  {change.reason}" if change.reason else "", "dim"),
    )


def _picture(startup: Startup) -> list[Piece]:
    """Lay out a start as a waterfall: each phase begins where the one before ended."""
    longest_s = max((start.value_s for arm in CACHE_STATES for start in startup.starts(arm)), default=0.0)
    drawn: list[Piece] = []
    for arm in ("warm", "cold"):
        starts = startup.starts(arm)
        known = [took for phase in PHASES if starts and isinstance(took := phase_s(starts, phase), float)]
        # Medians of phases may sum to more than the median of starts.
        longest_s = max(longest_s, sum(known))
        rows, begin_s = list[BarRow](), 0.0
        for phase in PHASES if starts and longest_s else ():
            took = phase_s(starts, phase)
            if isinstance(took, Unknown):
                continue
            if took >= LEAST_IN_PICTURE * longest_s:
                bar = Bar((Segment(START[arm], 1.0),), took / longest_s, begin_s / longest_s)
                rows.append(BarRow(PHASES[phase], words.duration(took, column=True), bar))
            begin_s += took
        if rows:
            label = f"A start with {START[arm].label}, phase by phase"
            on = On.EVERYWHERE if arm == "warm" else On.PAGE
            drawn += [Note(f"With {START[arm].label}:", tone="dim", on=On.PAGE), Bars(label, rows, on=on)]
    return (
        [Section("Where a start goes", drawn, aside="each phase begins where the one before ended")]
        if drawn
        else []
    )


def _phases(startup: Startup) -> Section:
    arms = [arm for arm in CACHE_STATES if startup.max_blocks or startup.starts(arm)]
    header = [Column(""), *(Column(TIME_TITLES[arm], "number") for arm in arms)]
    starts = [startup.starts(arm) for arm in arms]
    title = "to the line" if startup.run.ready_pattern else "to the first step"
    medians = [statistics.median(start.value_s for start in each) if each else None for each in starts]
    rows: list[list[Cell]] = [[Span(text, "strong") for text in (title, *map(words.duration, medians))]]
    unknown: dict[str, list[str]] = {}
    for phase in PHASES:
        values = [phase_s(each, phase) if each else 0.0 for each in starts]
        reasons = [value.reason for value in values if isinstance(value, Unknown)]
        if reasons:
            unknown.setdefault(reasons[0], []).append(PHASES[phase])
        elif any(values):
            rows.append([f"  {PHASES[phase]}", *(_time(value) if value else NOTHING for value in values)])
    steady = [_until_steady(startup, arm) for arm in arms]
    if any(steady):
        rows.append([Span(text or NOTHING, "dim") for text in ("then until steady", *steady)])
    notes = [
        Note(
            f"not known: {', '.join(names) if len(names) < len(PHASES) else 'the phases'}: {why}", tone="dim"
        )
        for why, names in unknown.items()
    ]
    table = Table("Median of the starts", header, rows, cards=False)
    return Section("Phases", [table, *notes, *_imports(startup.starts("warm"))], on=On.ALL_OF_IT)


def _time(took_s: float | Unknown) -> str:
    return words.UNKNOWN if isinstance(took_s, Unknown) else words.duration(took_s)


def _imports(warm: Sequence[Start]) -> list[Note]:
    if not warm or not warm[0].imports:
        return []
    longest = ", ".join(f"{name} {words.duration(took_s)}" for name, took_s in warm[0].imports[:NUM_IMPORTS])
    return [Note(f"longest imports, with what they import: {longest}", tone="dim")]


def _until_steady(startup: Startup, arm: CacheState) -> str:
    found = (pilot.until_steady_s for pilot in startup.pilots if pilot.arm == arm)
    took_s = next((value for value in found if value is not None), None)
    return "" if took_s is None else _time(took_s)


def _caches(startup: Startup) -> list[Piece]:
    """Lay out what the timed starts left in their own caches, and the state of the command's own caches."""
    cold, warm = startup.starts("cold"), startup.starts("warm")
    numbers = ("cold adds", "warm adds", "warm holds", "your own")
    header = [Column("cache"), *(Column(name, "number") for name in numbers), Column("lasts")]
    rows: list[list[Cell]] = []
    for cache in startup.own:
        held = max((start.held.get(cache.name, 0) for start in warm), default=0)
        left = [
            median(start.added_bytes(cache.name) for start in each) if each else 0 for each in (cold, warm)
        ]
        sizes = [*left, held, cache.size_bytes]
        if any(sizes):
            rows.append([TITLES[cache.name], *map(_size, sizes), _lasts(cache)])
    return [Section("Caches", [Table("", header, rows, cards=False)])] if rows else []


def _size(size: float | Unknown) -> str:
    if isinstance(size, Unknown):
        return words.UNKNOWN
    return words.num_bytes(size) if size else NOTHING


def _lasts(cache: Cache) -> str:
    if cache.off:
        return "off"
    if cache.writable is False:
        return "not writable"
    if cache.writable is not True or isinstance(cache.lasts, Unknown):
        return words.UNKNOWN
    return "yes" if cache.lasts else "no"


def _notes(startup: Startup) -> list[Piece]:
    void = [Note(one.reason, label=f"void: block {one.block}", on=On.TERMINAL) for one in startup.voided]
    where = (
        "These starts had caches in folders of their own; your caches were neither used nor changed. "
        f"The warm ones are in {startup.warm_caches}."
    )
    noted = [*wary(startup.warnings), Note(where, tone="dim", on=On.LONG)]
    return [*void, *noted]
