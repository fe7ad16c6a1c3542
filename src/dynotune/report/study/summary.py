"""Show a study on one screen: the answer, the recipe, a step before and after, settings, next commands."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from dynotune.report.bars import OF_A_STEP
from dynotune.report.layout import ShellCommand, fields, table
from dynotune.report.loudness import most
from dynotune.report.study.commands import RECIPE, repeats
from dynotune.report.study.header import ROUNDING_ADDS, WITHOUT_ROUNDING, headline, pays_off, stats
from dynotune.report.study.rows import KINDS, Tried, ablated, interval_of, tried
from dynotune.report.trace_parts import on_one_scale, prose, title
from dynotune.schema.attribution import Shares
from dynotune.schema.diagnosis import Diagnosis
from dynotune.schema.facts import Unknown
from dynotune.schema.observation import Timing
from dynotune.schema.study import Estimate, Study
from dynotune.text import words

NUM_SETTINGS, NUM_WARNINGS = 12, 4
# From this width on there is room for a picture of each interval.
WIDTH_OF_PICTURES = 100
PICTURE = 24
# Beyond this ratio an interval is cut: the others would have no room.
LARGEST = 4.0
# Of settings that were not measured, their reason is cut to this.
LONGEST_REASON = 160


def study_report(study: Study, *, recipe: str = RECIPE) -> RenderableType:
    """Show the whole answer of `report.html` on one screen.

    Args:
        recipe: path of the recipe, for the commands that use the recipe.
    """
    parts: list[RenderableType] = [
        _head(study),
        *_recipe(study),
        *_steps(study.diagnosis, study.diagnosis_with_recipe),
        *_settings(study),
        *_warnings(study.warnings),
        _next(study, recipe),
    ]
    return Group(*(piece for at, part in enumerate(parts) for piece in ((Text(), part) if at else (part,))))


def _head(study: Study) -> RenderableType:
    answer = headline(study)
    style = "bold green" if answer.good else "bold yellow"
    told = dict(stats(study))
    noise = f"; noise between runs {told['Noise between runs']}" if "Noise between runs" in told else ""
    rows: list[tuple[str, str | Text]] = [
        ("command", words.plain(words.command(study.run.command))),
        ("answer", Text.assemble((answer.large, style), "  ", answer.rest)),
        *([("", prose(answer.verdict))] if answer.verdict else []),
        *([(name.lower(), told[name]) for name in (WITHOUT_ROUNDING, ROUNDING_ADDS) if name in told]),
        *([("from, to", told["Before and after"])] if "Before and after" in told else []),
        *([("began from", words.plain(told["Began from"]))] if "Began from" in told else []),
        ("search", told["Search"] + noise),
        ("machine", told["Machine"]),
    ]
    return fields(rows)


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
    if study.break_even is not None and study.break_even.start_s > study.break_even.baseline_start_s:
        yield Text(f"The slower start breaks even {pays_off(study)}.", style="dim")


def _steps(before: Diagnosis | Unknown, after: Diagnosis | Unknown) -> Iterator[RenderableType]:
    """Yield a step as written and with the recipe, as bars on one scale, and a legend of the parts."""
    sides = [
        (label, made.shares, made.steps.step_s)
        for label, made in (("before", before), ("after", after))
        if isinstance(made, Diagnosis) and isinstance(made.shares, Shares) and isinstance(made.steps, Timing)
    ]
    if not sides:
        return
    has_device = isinstance(before, Diagnosis) and before.busy_share is not None
    yield Group(
        title("A step"), on_one_scale(OF_A_STEP, sides), _Legend([shares for _, shares, _ in sides], has_device)
    )


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
    detail = f"{measured} of {len(rows)} measured, each alone against the command {study.begun}"
    yield Group(title("Settings", detail), _Rows(rows))


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of measured settings, ordered by fate; then one line per fate for the other settings."""

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
        grid.add_column(overflow="ellipsis", no_wrap=True, ratio=1 if pictured else None, max_width=max(8, room))
        grid.add_column(justify="right", no_wrap=True, min_width=ratio)
        grid.add_column(no_wrap=True, min_width=ends)
        if pictured:
            grid.add_column(no_wrap=True, width=PICTURE)
        scale = _Scale.of([row.shown for row in shown if row.shown is not None])
        for row in shown:
            picture = [scale.picture(row.shown, row.look.style)] if pictured and row.shown else []
            grid.add_row(*_cells(row), *picture)
        yield grid
        if len(measured) > len(shown):
            yield Text(f"{len(measured) - len(shown)} more: report.html has all", style="dim")
        yield from _unmeasured([row for row in self.rows if row.shown is None], widest)


def _chosen(rows: Sequence[Tried]) -> list[Tried]:
    """Choose as many rows as there is room for: some of each fate, the recipe's settings before all others."""
    if len(rows) <= most(NUM_SETTINGS):
        return list(rows)
    kept = [row for row in rows if row.kind == "proved"]
    for depth in range(len(rows)):
        for kind in KINDS:
            of_kind = [row for row in rows if row.kind == kind and kind != "proved"]
            if depth < len(of_kind) and len(kept) < most(NUM_SETTINGS):
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


def _unmeasured(rows: Sequence[Tried], widest: int) -> Iterator[Text]:
    """Yield a line for each of the first unmeasured settings, with the reason, and how many more there are."""
    for row in rows[: most(NUM_SETTINGS)]:
        line = Text.assemble((f"{row.word:<{widest}}", row.look.style), f"  {words.plain(row.candidate.id)}")
        if row.reason:
            line.append(f"  {words.plain(row.reason, longest=LONGEST_REASON)}", style="dim")
        line.no_wrap, line.overflow = True, "ellipsis"
        yield line
    if len(rows) > most(NUM_SETTINGS):
        yield Text(f"{len(rows) - NUM_SETTINGS} more without a measurement: report.html has all", style="dim")


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
        """Draw `│` at 1, the interval as a line, the estimate as a point; `‹` and `›` if the interval goes on."""
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
    lines = [Text.assemble(("warning: ", "yellow"), prose(warning)) for warning in warnings[: most(NUM_WARNINGS)]]
    if len(warnings) > most(NUM_WARNINGS):
        lines.append(Text(f"{len(warnings) - NUM_WARNINGS} more warnings: --verbose shows all", style="dim"))
    return [Text("\n").join(lines)] if lines else []


def _next(study: Study, recipe: str) -> RenderableType:
    """Return the first commands to run next, ready to paste."""
    shown = ("Go on with more time", "Go on where", "Run", "Prove")
    commands = [one for one in repeats(study, recipe=recipe) if one.what.startswith(shown)]
    if not commands:
        return Text("report.html has every run, bound and fact; dynotune diagnose says what else costs.", style="dim")
    lines: list[RenderableType] = [
        piece for one in commands for piece in (Text(f"{one.what}:", style="dim"), ShellCommand(one.words, indent=2))
    ]
    return Group(*lines)
