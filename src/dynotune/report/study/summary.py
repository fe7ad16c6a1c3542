"""Show a study on one screen: the answer, the recipe, a step before and after, settings, next commands.

A terminal gets a screen of 24 lines: the answer, both bars, the first settings, and the command to run next.
Pipes, files and `--verbose` get all of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from dynotune.report.bars import OF_A_STEP
from dynotune.report.diagnosis import cost
from dynotune.report.layout import ShellCommand, fields, table
from dynotune.report.loudness import is_brief, is_verbose, most
from dynotune.report.study.commands import RECIPE, repeats
from dynotune.report.study.header import ROUNDING_ADDS, WITHOUT_ROUNDING, headline, pays_off, stats
from dynotune.report.study.rows import KINDS, Tried, ablated, interval_of, tried
from dynotune.report.study.sides import before_and_after, breakdowns
from dynotune.report.trace_parts import on_one_scale, place, prose, title
from dynotune.schema.attribution import Shares
from dynotune.schema.comparison import Comparison
from dynotune.schema.facts import Unknown
from dynotune.schema.study import Estimate, Study
from dynotune.text import words

NUM_SETTINGS, NUM_WARNINGS = 12, 4
# In brief: rows of settings in all, the last of them without a measurement.
NUM_IN_BRIEF = 4
# Settings without a measurement that have one reason share a row, which names the first ones.
NUM_NAMES = 4
# From this width on there is room for a picture of each interval.
WIDTH_OF_PICTURES = 100
PICTURE = 24
# Beyond this ratio an interval is cut: the others would have no room.
LARGEST = 4.0
# Of settings that were not measured, their reason is cut to this.
LONGEST_REASON = 400


def study_report(study: Study, *, recipe: str = RECIPE) -> RenderableType:
    """Show the whole answer of `report.html` on one screen.

    Args:
        recipe: path of the recipe, for the commands that use the recipe.
    """
    parts: list[RenderableType] = [
        _head(study),
        *([] if is_brief() else _recipe(study)),
        *_steps(study),
        *_settings(study),
        *_in_the_code(study),
        *([] if is_brief() else _warnings(study.warnings)),
        _next(study, recipe),
    ]
    return Group(*(piece for at, part in enumerate(parts) for piece in ((Text(), part) if at else (part,))))


def _head(study: Study) -> RenderableType:
    """Show the answer and its figures; in brief without the sentence that repeats a proved answer."""
    answer = headline(study)
    style = "bold green" if answer.good else "bold yellow"
    told = dict(stats(study))
    noise = f"; noise between runs {told['Noise between runs']}" if "Noise between runs" in told else ""
    breaks_even = (
        study.break_even is not None and study.break_even.start_s > study.break_even.baseline_start_s
    )
    rows: list[tuple[str, str | Text]] = [
        ("answer", Text.assemble((answer.large, style), "  ", answer.rest)),
        *([("", prose(answer.verdict))] if answer.verdict and not (answer.good and is_brief()) else []),
        *([(name.lower(), told[name]) for name in (WITHOUT_ROUNDING, ROUNDING_ADDS) if name in told]),
        *([("from, to", told["Before and after"])] if "Before and after" in told else []),
        *([("start", f"The slower start breaks even {pays_off(study)}.")] if breaks_even else []),
    ]
    if is_brief():
        return fields(rows)
    command = ("command", words.plain(words.command(study.run.command)))
    blocks = [("in blocks", _in_blocks(one)) for one in study.within] if is_verbose() else []
    return fields([command, *rows, ("search", told["Search"] + noise), *blocks])


def _in_blocks(comparison: Comparison) -> str:
    """Say what blocks within one process said of an arm, and how their baseline compares with the plain
    window."""
    shift = comparison.baseline_shift
    baseline = "unknown" if shift is None else words.baseline_shift(shift)
    return (
        f"{words.plain(words.settings(comparison.candidate_settings))}: {words.speedup(comparison)} "
        f"({words.interval(comparison.ci)}, {comparison.num_pairs} blocks); a step of the baseline against "
        "the plain "
        f"window: {baseline}"
    )


def _recipe(study: Study) -> Iterator[RenderableType]:
    if not study.recipe:
        return
    worth = {row.candidate.setting: row.worth for row in ablated(study)}
    grid = table(":text", ":number", ":whole")
    for setting in study.recipe:
        estimate = worth.get(setting)
        ci = interval_of(estimate) if estimate else None
        gain = words.times(estimate.speedup, digits=words.digits(ci)) if estimate else ""
        told = Text(f"{words.interval(ci)}" if estimate else "", style="dim")
        grid.add_row(Text(words.plain(str(setting)), style="bold"), gain, told)
    detail = "each with and without it, in the whole" if any(worth.values()) else ""
    yield Group(title("Recipe", detail), grid)


def _steps(study: Study) -> Iterator[RenderableType]:
    """Yield a step or sample before and with the recipe, as bars on one scale, and a legend of the parts."""
    sides, compared = breakdowns(study), before_and_after(study)
    bars = [(side.name, side.shares, side.whole_s) for side in sides if side.whole_s is not None]
    if not bars:
        return
    legend = _Legend([side.shares for side in sides], sides[0].has_device)
    missing = compared.reason if study.recipe and isinstance(compared, Unknown) else ""
    note = [Text(f"The step with the recipe is not shown: {missing}.", style="dim")] if missing else []
    yield Group(title(f"A {sides[0].of_what}"), on_one_scale(OF_A_STEP, bars), legend, *note)


@dataclass(frozen=True, slots=True)
class _Legend:
    """The legend: each part with its share before and after."""

    sides: Sequence[Shares]
    has_device: bool

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        line = Text()
        for part in OF_A_STEP:
            shares = [part.of(side) for side in self.sides]
            if not any(share > 0 for share in shares):
                continue
            told = " → ".join(words.fine_share(share) for share in shares)
            entry = Text.assemble(part.drawn(options), f" {part.named(self.has_device)} ", (told, "dim"))
            if line and cell_len(line.plain) + cell_len(entry.plain) + 3 > options.max_width:
                yield line
                line = Text()
            line = Text("   ").join([line, entry]) if line else entry
        yield line


def _settings(study: Study) -> Iterator[RenderableType]:
    rows = tried(study)
    if not rows:
        yield title("Settings", "none was tried yet")
        return
    measured = sum(row.shown is not None for row in rows)
    detail = f"{measured} of {len(rows)} measured"
    if not is_brief():
        detail += f", each alone against the command {study.begun}"
    elif study.finished:
        detail += "; report.html has all"
    yield Group(title("Settings", detail), _Rows(rows))


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of measured settings, ordered by fate; then the other settings, those with one reason together."""

    rows: Sequence[Tried]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        pictured = options.max_width >= WIDTH_OF_PICTURES and not options.ascii_only
        widest = max(len(row.word) for row in self.rows)
        measured = [row for row in self.rows if row.shown is not None]
        shown = _chosen(measured)
        # Names give way to figures.
        figures = [[len(cell) for cell in _cells(row)[2:]] for row in shown]
        ratio, ends = (max((row[at] for row in figures), default=0) for at in (0, 1))
        room = options.max_width - (widest + ratio + ends + 8) - (PICTURE + 2 if pictured else 0)
        grid = table()
        grid.add_column(no_wrap=True, min_width=widest)
        grid.add_column(
            overflow="ellipsis", no_wrap=True, ratio=1 if pictured else None, max_width=max(8, room)
        )
        grid.add_column(justify="right", no_wrap=True, min_width=ratio)
        grid.add_column(no_wrap=True, min_width=ends)
        if pictured:
            grid.add_column(no_wrap=True, width=PICTURE)
        scale = _Scale.of([row.shown for row in shown if row.shown is not None])
        for row in shown:
            picture = [scale.picture(row.shown, row.look.style)] if pictured and row.shown else []
            grid.add_row(*_cells(row), *picture)
        yield grid
        if len(measured) > len(shown) and not is_brief():
            yield Text(f"{len(measured) - len(shown)} more: report.html has all", style="dim")
        left = max(1, NUM_IN_BRIEF - len(shown)) if is_brief() else NUM_SETTINGS
        yield from _unmeasured([row for row in self.rows if row.shown is None], widest, most(left))


def _in_the_code(study: Study) -> list[RenderableType]:
    """Show the first finding that no setting mends, if nothing is proved: what only the code can do, and
    where."""
    if not study.finished or study.recipe or isinstance(study.diagnosis, Unknown):
        return []
    mended = (one for one in study.diagnosis.findings if one.kind == "speed" and one.severity != "low")
    finding = next((one for one in mended if one.remedy and not one.candidates), None)
    if finding is None:
        return []
    lines = [prose(finding.claim), *filter(None, [place(finding.where)]), prose(finding.remedy)]
    return [Group(title("In the code", cost(finding)), Text("\n").join(lines))]


def _chosen(rows: Sequence[Tried]) -> list[Tried]:
    """Choose as many rows as there is room for: some of each fate, the recipe's settings before all
    others."""
    room = most(NUM_IN_BRIEF - 1 if is_brief() else NUM_SETTINGS)
    if len(rows) <= room:
        return list(rows)
    kept = [row for row in rows if row.kind == "proved"]
    for depth in range(len(rows)):
        for kind in KINDS:
            of_kind = [row for row in rows if row.kind == kind and kind != "proved"]
            if depth < len(of_kind) and len(kept) < room:
                kept.append(of_kind[depth])
    return [row for row in rows if row in kept]


def _cells(row: Tried) -> list[Text]:
    estimate = row.shown
    ci = interval_of(estimate) if estimate else None
    return [
        Text(row.word, style=row.look.style),
        Text(words.plain(row.name)),
        Text(words.times(estimate.speedup, digits=words.digits(ci)) if estimate else ""),
        Text(words.interval(ci) if estimate else "", style="dim"),
    ]


def _unmeasured(rows: Sequence[Tried], widest: int, room: int) -> Iterator[RenderableType]:
    """Yield the first unmeasured settings below their fates, with the whole reason, and how many more there
    are."""
    alike: dict[tuple[str, str], list[Tried]] = {}
    for row in rows:
        alike.setdefault((row.word, row.reason), []).append(row)
    shown = list(alike.items())[:room]
    grid = table()
    grid.add_column(no_wrap=True, min_width=widest)
    grid.add_column(overflow="fold")
    for (word, reason), settings in shown:
        names = words.plain(_names([row.candidate.id for row in settings]))
        told = f"  {words.plain(reason, longest=LONGEST_REASON)}" if reason else ""
        grid.add_row(Text(word, style=settings[0].look.style), Text.assemble(names, (told, "dim")))
    if shown:
        yield grid
    left = len(rows) - sum(len(settings) for _, settings in shown)
    if left and not is_brief():
        yield Text(f"{left} more without a measurement: report.html has all", style="dim")


def _names(ids: Sequence[str]) -> str:
    """Name the first settings, and say how many more there are."""
    room = most(NUM_NAMES)
    return ", ".join(ids[:room]) + (f" and {len(ids) - room} more" if len(ids) > room else "")


@dataclass(frozen=True, slots=True)
class _Scale:
    """A logarithmic scale with a fixed number of columns that includes 1."""

    low: float
    high: float

    @classmethod
    def of(cls, estimates: Sequence[Estimate]) -> _Scale:
        ends = [end for one in estimates for end in (one.speedup, *(interval_of(one) or ()))]
        low, high = min([0.95, *ends]), max([1.05, *ends])
        return cls(max(low, 1 / LARGEST), min(high, LARGEST))

    def column(self, ratio: float) -> int:
        clipped = min(max(ratio, self.low), self.high)
        return round((PICTURE - 1) * math.log(clipped / self.low) / math.log(self.high / self.low))

    def picture(self, estimate: Estimate, style: str) -> Text:
        """Draw `│` at 1, the interval as a line, the estimate as a point; `‹` and `›` if the interval goes
        on."""
        cells = [" "] * PICTURE
        ends = interval_of(estimate) or (estimate.speedup, estimate.speedup)
        low, high = map(self.column, ends)
        cells[low : high + 1] = "─" * (high + 1 - low)
        if ends[0] < self.low:
            cells[0] = "‹"
        if ends[1] > self.high:
            cells[-1] = "›"
        cells[self.column(1.0)] = "│"
        cells[self.column(estimate.speedup)] = "●"
        return Text("".join(cells), style=style)


def _warnings(warnings: Sequence[str]) -> list[RenderableType]:
    lines = [
        Text.assemble(("warning: ", "yellow"), prose(warning)) for warning in warnings[: most(NUM_WARNINGS)]
    ]
    if len(warnings) > most(NUM_WARNINGS):
        lines.append(Text(f"{len(warnings) - NUM_WARNINGS} more warnings: --verbose shows all", style="dim"))
    return [Text("\n").join(lines)] if lines else []


def _next(study: Study, recipe: str) -> RenderableType:
    """Return the first commands to run next, ready to paste; in brief, one of them."""
    shown = {"more-time", "resume", "run", *(() if is_brief() else ("prove",))}
    commands = [one for one in repeats(study, recipe=recipe) if one.kind in shown]
    lines: list[RenderableType] = [
        piece
        for one in commands
        for piece in (Text(f"{one.what}:", style="dim"), ShellCommand(one.words, indent=2))
    ]
    # A study that was stopped has no page yet.
    if commands and not (is_brief() and study.finished):
        return Group(*lines)
    num = len(study.warnings)
    warnings = "1 warning" if num == 1 else f"{num} warnings"
    warned = f"{warnings}, " if num and is_brief() else ""
    more = "and more commands" if commands else "bound and fact; dynotune diagnose says what else costs"
    return Group(*lines, Text(f"report.html has {warned}every run, {more}.", style="dim"))
