"""Lay out a study: the answer, the recipe, a step before and after, settings tried, the proof."""

from __future__ import annotations

from collections.abc import Sequence

from dynotune.report import machine
from dynotune.report.blocks import (
    Answer,
    Cell,
    Column,
    CommandLine,
    Commands,
    Fields,
    Forest,
    Interval,
    Lines,
    Listing,
    Note,
    On,
    Phrase,
    Piece,
    Report,
    Section,
    Span,
    Table,
    Tone,
    warnings,
)
from dynotune.report.comparison import kicker, unverified
from dynotune.report.diagnosis import cost
from dynotune.report.loudness import is_verbose
from dynotune.report.places import place, plain_place, prose
from dynotune.report.steps import parts_table, stacked
from dynotune.report.study import tables
from dynotune.report.study.commands import RECIPE, compares, repeats
from dynotune.report.study.header import ROUNDING_ADDS, WITHOUT_ROUNDING, headline, pays_off, stats
from dynotune.report.study.rows import KINDS, Tried, ablated, amount, interval_of, tried
from dynotune.report.study.sides import before_and_after, breakdowns, thousand_steps
from dynotune.schema.comparison import Comparison
from dynotune.schema.diagnosis import Diagnosis, Finding
from dynotune.schema.facts import Unknown
from dynotune.schema.study import Study
from dynotune.text import words

NUM_WARNINGS = 4
NUM_IN_BRIEF = 4
"""Rows of settings on a screen, the last of them without a measurement."""
NUM_SETTINGS = 12
NUM_NAMES = 4
"""Settings without a measurement that have one reason share a row, which names the first ones."""
NUM_UNMEASURED_IN_BRIEF = 2
LONGEST_REASON, LONGEST_REASON_IN_BRIEF = 400, 80
NEXT = ("resume", "run", "prove", "more-time")
"""Kinds of commands to type after a study."""


def layout(study: Study, *, recipe: str = RECIPE, recipe_text: str = "") -> Report:
    """Lay out the whole answer.

    Args:
        recipe: path of the recipe, for the commands that use the recipe.
        recipe_text: the recipe's text, for a page; "" if there is none.
    """
    listing = Listing("recipe.toml", recipe_text.splitlines()) if recipe_text else None
    day = f", begun on {study.attempts[0].began[:10]}" if study.attempts else ""
    return Report(
        kicker=kicker("dynotune tune", study.run.objective),
        answer=_answer(study),
        command=words.shell(study.run.command),
        head=[*_head(study), Fields(list(stats(study)), on=On.PAGE)],
        settings=list(map(str, study.recipe or [])),
        use=_use(study, recipe),
        recipe=listing,
        sections=[
            *_recipe(study),
            *_steps(study),
            _settings(study),
            *_in_the_code(study),
            *_worth(study),
            tables.together(study),
            tables.bounds(study),
            tables.confirmation(study),
            tables.results(study),
            tables.search(study),
            *_wary(study),
            _repeat(study, recipe),
            machine.section(study.facts, tables.readback(study)),
            *_page_has(study),
        ],
        footer=f"Study {study.id}{day}. All that is shown here is in its study.json.",
    )


def _use(study: Study, recipe: str) -> list[CommandLine]:
    """Return what to type next; a screen has no room for the second proof."""
    where = {"prove": On.ALL_OF_IT}
    return [
        CommandLine(one.what, one.words, where.get(one.kind, On.EVERYWHERE))
        for one in repeats(study, recipe=recipe)
        if one.kind in NEXT
    ]


def _answer(study: Study) -> Answer:
    """Return the answer; if nothing was proved, with what only the code can do."""
    answer = headline(study)
    finding = _mended_in_the_code(study)
    if finding is None:
        return answer
    where = plain_place(finding.where)
    bound = f", {cost(finding)}" if cost(finding) else ""
    line = Lines(
        (
            "No setting was proved to help.",
            f"What would, in the code: {finding.id}{bound}{f' ({where})' if where else ''}.",
        )
    )
    return Answer(large=answer.large, rest=answer.rest, sentence=answer.sentence, line=line, tone=answer.tone)


def _head(study: Study) -> list[Fields]:
    """Lay out what was tuned, and the figures beside the answer."""
    said = dict(stats(study))
    noise = f"; noise between runs {said['Noise between runs']}" if "Noise between runs" in said else ""
    breaks_even = (
        study.break_even is not None and study.break_even.start_s > study.break_even.baseline_start_s
    )
    thousand = f"; 1,000 steps {said['1,000 steps']}" if "1,000 steps" in said else ""
    blocks = [("in blocks", _in_blocks(one)) for one in study.within] if is_verbose() else []
    rows: list[tuple[str, str]] = [
        *([(name.lower(), said[name]) for name in (WITHOUT_ROUNDING, ROUNDING_ADDS) if name in said]),
        *([("from, to", said["Before and after"] + thousand)] if "Before and after" in said else []),
        *([("start", f"The slower start breaks even {pays_off(study)}.")] if breaks_even else []),
    ]
    command = ("command", words.command(study.run.command))
    return [
        Fields([command, *rows, ("search", said["Search"] + noise), *blocks], on=On.LONG),
        *([Fields(rows, on=On.SCREEN)] if rows else []),
    ]


def _in_blocks(comparison: Comparison) -> str:
    """Say what blocks within one process said of an arm, and how their baseline compares with the window
    timed before anything was switched."""
    shift = comparison.baseline_shift
    baseline = "unknown" if shift is None else words.baseline_shift(shift)
    found = words.with_interval(comparison.speedup, comparison.ci, digits=words.digits(comparison.ci))
    num = f"{comparison.num_pairs} block{'' if comparison.num_pairs == 1 else 's'}"
    return (
        f"{words.settings(comparison.candidate_settings)}: {found}, {num}; time of a baseline step, "
        f"relative to the window before anything was switched: {baseline}"
    )


def _recipe(study: Study) -> list[Piece]:
    if not study.recipe:
        return []
    worth = {row.candidate.setting: row.worth for row in ablated(study)}
    thousand = thousand_steps(study)
    rows: list[list[Phrase]] = []
    for setting in study.recipe:
        estimate = worth.get(setting)
        ci = interval_of(estimate) if estimate else None
        gain = words.times(estimate.speedup, digits=words.digits(ci)) if estimate else ""
        # Without the setting, the steps of the recipe would take this much more.
        saved = (estimate.speedup - 1) * thousand[1] if estimate and thousand else None
        saves = "" if saved is None else f"saves {amount(study, saved)}"
        between = Span(words.interval(ci) if estimate else "", "dim")
        rows.append([Span(str(setting), "strong"), gain, between, saves])
    detail = "each compared with and without, among all the others" if any(worth.values()) else ""
    if detail and thousand:
        detail = "each with and without, among all the others; savings in 1,000 steps"
    table = Table("", [Column(""), Column("", "number"), Column("", "whole"), Column("")], rows)
    return [Section("Recipe", [table], aside=detail, on=On.LONG)]


def _steps(study: Study) -> list[Piece]:
    """Lay out a step or sample before and with the recipe, as bars on one scale."""
    sides, compared = breakdowns(study), before_and_after(study)
    if not sides:
        return []
    missing = compared.reason if study.recipe and isinstance(compared, Unknown) else ""
    note = (
        [Note(f"The step with the recipe is not shown: {missing.rstrip('.')}.", tone="dim")]
        if missing
        else []
    )
    limits = (
        [] if isinstance(study.diagnosis, Unknown) else [Note(prose(study.diagnosis.verdict), on=On.PAGE)]
    )
    if not isinstance(compared, Unknown):
        limits += _with_recipe(study.diagnosis_with_recipe)
    has_bars = any(side.whole_s is not None for side in sides)
    of_what = sides[0].of_what
    return [
        Section(f"A {of_what}", [stacked(sides)], on=On.TERMINAL if has_bars else On(0)),
        *([Note(note[0].text, tone="dim", on=On.TERMINAL)] if note and has_bars else []),
        Section(
            f"Where a {of_what} goes",
            [*limits, *note, stacked(sides), parts_table(sides)],
            on=On.PAGE,
        ),
    ]


def _with_recipe(diagnosis: Diagnosis | Unknown) -> list[Note]:
    if isinstance(diagnosis, Unknown):
        return []
    limits = f"{diagnosis.bottleneck} limits this command"
    if diagnosis.bottleneck == "none":
        limits = "nothing that could be avoided holds this command up"
    sources = "The confirmation timed both lengths; one diagnosis of each side gives the parts."
    return [Note(f"With the recipe, {limits}. {sources}", on=On.PAGE)]


def _settings(study: Study) -> Section:
    rows = tried(study)
    measured = sum(row.shown is not None for row in rows)
    if not rows:
        aside = "none was tried yet"
    elif not measured:
        aside = "none measured on its own"
    else:
        aside = f"{measured} of {len(rows)} measured, each alone against the command {study.begun}"
    kinds = {row.kind for row in rows if row.shown is not None}
    legend: list[tuple[str, Tone, str]] = [
        (look.mark, look.tone, look.meaning) for kind, look in KINDS.items() if look.meaning and kind in kinds
    ]
    forest = Forest(
        "Speed-up of each setting alone, with its interval",
        [_interval(row) for row in rows],
        study.margin,
        legend=legend,
        grouped=True,
        screen=NUM_IN_BRIEF - 1,
        most=NUM_SETTINGS,
    )
    return Section(
        "Settings tried",
        [
            Note(_aside_on_page(study) if rows else "None was tried yet.", on=On.PAGE),
            *([forest] if measured else []),
            *_unmeasured([row for row in rows if row.shown is None], min(measured, NUM_IN_BRIEF - 1)),
            tables.settings(study),
            tables.not_offered(study),
            tables.tested(study),
        ],
        aside=aside,
    )


def _aside_on_page(study: Study) -> str:
    alone = f"Each setting alone, against the command {study.begun}; right of 1× is faster"
    if any(candidate.needs for candidate in study.candidates):
        alone += (
            ". A setting that has an effect only together with another one is compared, together with "
            "it, against the other one alone"
        )
    return f"{alone}. Grey: less than {words.share_margin(study.margin)} difference."


def _interval(row: Tried) -> Interval:
    estimate = row.shown
    if estimate is None:
        note = "not measured" if row.kind in ("not-tried", "open") else "no measurement"
        return Interval(row.word, row.name, None, None, note=note, tone=row.look.tone)
    ci = interval_of(estimate)
    figures = (words.times(estimate.speedup, digits=words.digits(ci)), words.interval(ci))
    return Interval(
        row.word,
        row.name,
        estimate.speedup,
        ci,
        row.look.mark,
        row.look.tone,
        figures,
        first=row.kind == "proved",
    )


def _unmeasured(rows: Sequence[Tried], num_shown: int) -> list[Piece]:
    """Lay out the unmeasured settings by fate and reason, as the terminal shows them."""
    alike: dict[tuple[str, str], list[Tried]] = {}
    for row in rows:
        alike.setdefault((row.word, row.reason), []).append(row)
    cells, brief = (
        [_fate_of(word, rows, prose(reason, longest=longest)) for (word, reason), rows in alike.items()]
        for longest in (LONGEST_REASON, LONGEST_REASON_IN_BRIEF)
    )
    header = [Column("", "whole"), Column("")]
    room = max(1, min(NUM_UNMEASURED_IN_BRIEF, NUM_IN_BRIEF - num_shown))
    whole = Table("", header, cells, most=NUM_SETTINGS, all_by="report.html has all", on=On.LONG)
    return [Table("", header, brief[:room], on=On.SCREEN), whole] if cells else []


def _fate_of(word: str, settings: Sequence[Tried], reason: str) -> list[Cell]:
    names = _names([row.candidate.id for row in settings])
    return [Span(word, settings[0].look.tone), (names, Span(f"  {reason}", "dim"))]


def _names(ids: Sequence[str]) -> str:
    """Name the first settings, and say how many more there are."""
    room = len(ids) if is_verbose() else NUM_NAMES
    return ", ".join(ids[:room]) + (f" and {len(ids) - room} more" if len(ids) > room else "")


def _mended_in_the_code(study: Study) -> Finding | None:
    """Return the first finding that no setting mends, if nothing is proved."""
    if not study.finished or study.recipe or isinstance(study.diagnosis, Unknown):
        return None
    loud = (one for one in study.diagnosis.findings if one.kind == "speed" and one.severity != "low")
    return next((one for one in loud if one.remedy and not one.candidates), None)


def _in_the_code(study: Study) -> list[Piece]:
    finding = _mended_in_the_code(study)
    if finding is None:
        return []
    claim, where, remedy = prose(finding.claim), place(finding.where), prose(finding.remedy)
    # On a terminal, the verdict below already names the place.
    notes = [
        Note(Lines(tuple(filter(None, lines))), on=on)
        for lines, on in (((claim, remedy), On.SCREEN), ((claim, where, remedy), On.ALL_OF_IT))
    ]
    return [Section("In the code", notes, aside=cost(finding))]


def _worth(study: Study) -> list[Piece]:
    rows = [row for row in ablated(study) if row.worth is not None]
    if not rows:
        return []
    intervals = []
    for row in rows:
        assert row.worth is not None
        ci, kept = interval_of(row.worth), row.kind == "proved"
        figures = (words.times(row.worth.speedup, digits=words.digits(ci)), words.interval(ci))
        look: tuple[str, Tone] = ("●", "good") if kept else ("□", "dim")
        intervals.append(Interval("", row.candidate.id, row.worth.speedup, ci, *look, figures))
    legend: list[tuple[str, Tone, str]] = [("●", "good", "kept"), ("□", "dim", "dropped")]
    forest = Forest("What each setting adds to the others", intervals, study.margin, legend=legend)
    said = (
        "The best arm with and without one setting, in random order. A setting that does not prove to "
        "help is dropped before the others are confirmed."
    )
    blocks = [Note(said), forest, tables.worth(study)]
    return [Section("What each setting adds to the others", blocks, on=On.PAGE)]


def _wary(study: Study) -> list[Piece]:
    found = list(study.warnings)
    left = len(found) - NUM_WARNINGS
    shown = found if is_verbose() else found[:NUM_WARNINGS]
    more = [Note(f"{left} more warnings: --verbose shows all", tone="dim", on=On.LONG)] if left > 0 else []
    for label, made in (
        (study.begun.capitalize(), study.diagnosis),
        ("With the recipe", study.diagnosis_with_recipe),
    ):
        if isinstance(made, Diagnosis):
            found += [f"{label}: {note}" for note in made.notes]
    found = list(dict.fromkeys([*found, *unverified(study.readback.values())]))
    on_page = [*warnings(map(prose, found)), tables.not_known(study)]
    return [
        *warnings(map(prose, shown), on=On.LONG),
        *(more if not is_verbose() else []),
        Section("Be wary of", on_page, on=On.PAGE),
    ]


def _repeat(study: Study, recipe: str) -> Section:
    where = ("In ", Span(str(study.run.cwd), "code"), ":")
    rest = [one for one in repeats(study, recipe=recipe) if one.kind not in NEXT]
    lines = [CommandLine(one.what, one.words) for one in rest]
    each = [CommandLine(one.what, one.words) for one in compares(study)]
    folded = [Commands(each, "A comparison of each setting")] if each else []
    return Section("Repeat it", [Note(where), Commands(lines), *folded], on=On.PAGE)


def _page_has(study: Study) -> list[Piece]:
    """Say what is in report.html; a study that was stopped has no page yet."""
    sentence = [Note(prose(study.verdict), on=On.LONG)] if study.recipe and study.verdict else []
    commands = any(one.kind in NEXT for one in repeats(study))
    more = (
        "and more commands"
        if commands
        else "predicted and measured; dynotune diagnose shows what else costs time"
    )
    num = len(study.warnings)
    warned = f"{'1 warning' if num == 1 else f'{num} warnings'}, " if num else ""
    brief = Note(f"report.html has {warned}every run, {more}.", tone="dim", on=On.SCREEN)
    whole = Note(f"report.html has every run, {more}.", tone="dim", on=On.LONG)
    return [*sentence, *([brief] if study.finished or not commands else []), *([] if commands else [whole])]
