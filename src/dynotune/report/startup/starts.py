"""Show timed starts in the terminal: a line per block during the run, then what a warm cache saves, and
where."""

import statistics
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from dynotune.report.comparison import VERDICT_STYLES
from dynotune.report.layout import finding_lines, table
from dynotune.report.progress import Progress
from dynotune.schema.caches import TITLES, Cache
from dynotune.schema.facts import Unknown
from dynotune.schema.startup import (
    CACHE_STATES,
    PHASES,
    CacheState,
    Ratio,
    Start,
    StartBlock,
    Startup,
    VoidBlock,
    median,
    phase_s,
)
from dynotune.text import words

TIME_TITLES: dict[CacheState, str] = {"cold": "caches cold", "warm": "warm", "off": "off"}


class StartProgress(Progress):
    """Show the progress of a running `startup time`."""

    def started(self, block: StartBlock, *, number: int, max_blocks: int) -> None:
        self._clear()
        values = ", ".join(f"{arm} {words.duration(block.of(arm).value_s)}" for arm in CACHE_STATES)
        self._console.print(
            Text.assemble((f"block {number:>2}/{max_blocks}  ", "dim"), values), soft_wrap=True
        )

    def voided_block(self, voided: VoidBlock) -> None:
        self._clear()
        self._console.print(
            Text.assemble((f"block {voided.block:>2} void: ", "yellow"), voided.reason), soft_wrap=True
        )


def startup_report(startup: Startup) -> RenderableType:
    """Show how much time a warm cache saves, what the start consists of, and what to set."""
    parts: list[RenderableType] = [_headline(startup), Padding(_phases(startup), (1, 0))]
    if (caches := _caches(startup)) is not None:
        parts.append(Padding(caches, (0, 0, 1, 0)))
    parts += [Text(words.plain(text)) for text in startup.said]
    if startup.to_set:
        parts.append(Text("to set", style="bold"))
    parts += [
        Text.assemble("  ", (setting, "bold"), (f"   {why}", "dim"))
        for setting, why in startup.to_set.items()
    ]
    parts += [Padding(finding_lines(finding), (1, 0, 0, 0)) for finding in startup.findings]
    parts.append(_notes(startup))
    return Group(*parts)


def _headline(startup: Startup) -> RenderableType:
    pattern = startup.run.ready_pattern
    until = f"a line that matches {pattern!r}" if pattern else startup.step or "the first step"
    return Group(
        Text.assemble(("command  ", "dim"), words.plain(words.command(startup.run.command))),
        Text.assemble(("until    ", "dim"), words.plain(until)),
        *map(_ratio, startup.ratios),
    )


def _ratio(ratio: Ratio) -> Text:
    what = {"cold": "cold over warm", "off": "off over warm", "warm": "warm"}[ratio.arm]
    verdict = ratio.verdict or "no verdict"
    measured = ratio.ratio is not None
    return Text.assemble(
        (f"{what:<14} ", "dim"),
        (f"{words.times(ratio.ratio)} " if measured else "", "bold"),
        f"({words.interval(ratio.ci)}) " if measured else "",
        (f"warm is {verdict}" if verdict in ("faster", "slower") else verdict, VERDICT_STYLES[ratio.verdict]),
        f", {ratio.num_blocks} blocks",
        (f"  {ratio.reason}" if ratio.reason else "", "dim"),
    )


def _phases(startup: Startup) -> RenderableType:
    rows = table(":", *(f"{TIME_TITLES[arm]}:right" for arm in CACHE_STATES), style="bold", gap=3)
    columns = [startup.starts(arm) for arm in CACHE_STATES]
    title = "to the line" if startup.run.ready_pattern else "to the first step"
    medians = [statistics.median(start.value_s for start in each) if each else None for each in columns]
    rows.add_row(title, *map(words.duration, medians), style="bold")
    unknown: dict[str, list[str]] = {}
    for phase in PHASES:
        values = [phase_s(each, phase) if each else 0.0 for each in columns]
        reasons = [value.reason for value in values if isinstance(value, Unknown)]
        if reasons:
            unknown.setdefault(reasons[0], []).append(PHASES[phase])
        elif any(values):
            shown = [_time(value) if value else "–" for value in values]
            rows.add_row(f"  {PHASES[phase]}", *shown)
    steady = [_until_steady(startup, arm) for arm in CACHE_STATES]
    if any(steady):
        rows.add_row("then until steady", *(text or "–" for text in steady), style="dim")
    notes = [
        Text(
            f"not known: {', '.join(names) if len(names) < len(PHASES) else 'the phases'}: {why}", style="dim"
        )
        for why, names in unknown.items()
    ]
    return Group(rows, *notes, *_imports(columns[1]))


def _time(took_s: float | Unknown) -> str:
    return words.UNKNOWN if isinstance(took_s, Unknown) else words.duration(took_s)


def _imports(warm: Sequence[Start]) -> list[Text]:
    if not warm or not warm[0].imports:
        return []
    longest = ", ".join(
        f"{words.plain(name)} {words.duration(took_s)}" for name, took_s in warm[0].imports[:4]
    )
    return [Text(f"longest imports, with what they import: {longest}", style="dim")]


def _until_steady(startup: Startup, arm: CacheState) -> str:
    found = (pilot.until_steady_s for pilot in startup.pilots if pilot.arm == arm)
    took_s = next((value for value in found if value is not None), None)
    return "" if took_s is None else _time(took_s)


def _caches(startup: Startup) -> RenderableType | None:
    """Show what the timed starts left in their own caches, and the state of the command's own caches."""
    cold, warm = startup.starts("cold"), startup.starts("warm")
    sizes_of = (f"{header}:right" for header in ("cold adds", "warm adds", "warm holds", "your own", "lasts"))
    rows = table("cache:", *sizes_of, style="bold", gap=3)
    for cache in startup.own:
        held = max((start.held.get(cache.name, 0) for start in warm), default=0)
        left = [
            median(start.added_bytes(cache.name) for start in each) if each else 0 for each in (cold, warm)
        ]
        sizes = [*left, held, cache.size_bytes]
        if any(sizes):
            rows.add_row(TITLES[cache.name], *map(_size, sizes), _lasts(cache))
    return rows if rows.row_count else None


def _size(size: float | Unknown) -> str:
    if isinstance(size, Unknown):
        return words.UNKNOWN
    return words.num_bytes(size) if size else "–"


def _lasts(cache: Cache) -> str:
    if cache.off:
        return "off"
    if cache.writable is False:
        return "not writable"
    if cache.writable is not True or isinstance(cache.lasts, Unknown):
        return words.UNKNOWN
    return "yes" if cache.lasts else "no"


def _notes(startup: Startup) -> RenderableType:
    lines = [
        Text.assemble((f"void: block {v.block}: ", "yellow"), words.plain(v.reason)) for v in startup.voided
    ]
    lines += [Text.assemble(("warning: ", "yellow"), words.plain(text)) for text in startup.warnings]
    where = (
        "Caches of these starts lay in folders of their own; yours were neither used nor changed. "
        f"The warm ones are in {words.plain(startup.warm_caches)}."
    )
    lines.append(Text(where, style="dim"))
    return Padding(Group(*lines), (1, 0, 0, 0))
