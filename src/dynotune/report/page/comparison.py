"""The view of a comparison."""

from collections.abc import Iterator
from dataclasses import dataclass

from dynotune.report.comparison import Figure, arms, objective, warnings
from dynotune.report.page import plots
from dynotune.report.page.table import NOTHING, Cell, Marked, Table, facts, value_of, with_rows
from dynotune.report.page.view import Lines, View, drawn, objective_beside, percent, title_of
from dynotune.report.study.commands import again
from dynotune.report.study.header import Headline, arrow, machine
from dynotune.schema.comparison import Comparison, FailedArm
from dynotune.schema.facts import Unknown
from dynotune.schema.run import EnvironmentChange, Readback
from dynotune.schema.setting import Setting
from dynotune.text import words

MOST_LAST_LINES = 40
NUM_IN_HEAD = 3
"""The number of figures of both arms that stand in the page's head."""

_LARGE = {"same": "No effect", "undecided": "Undecided", None: "No verdict"}
_IN_EFFECT = {
    True: Marked("●", "in effect"),
    False: Marked("×", "not in effect"),
    None: Marked("□", "unverified"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An arm whose command failed.

    Args:
        ending: how the command ended, in words.
        last_lines: what the command printed last.
    """

    arm: str
    ending: str
    last_lines: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonView(View):
    """View of the page of a comparison.

    Args:
        id, cwd: of the comparison, and the folder in which its command ran.
        objective: what was compared; "" for throughput.
        failure: None unless the command failed.
        paired: sentences on how the arms were compared and how the plot is read.
        unit: "pair" or "block".
        confidence: of the interval, as a percentage.
        of_blocks: sentences on what blocks said before fresh pairs, and on the baseline in the blocks.
        reason: why there is no verdict, or what limits it; "" if there is nothing to say.
    """

    id: str
    cwd: str
    objective: str
    failure: Failure | None
    settings: list[Setting]
    paired: str
    unit: str
    confidence: str
    of_blocks: list[str]
    reason: str


def view_of(comparison: Comparison) -> ComparisonView:
    unit = plots.noun(comparison)
    figures = _figures(comparison)
    return ComparisonView(
        title=title_of(comparison.run.command),
        command=words.shell(comparison.run.command),
        headline=_headline(comparison),
        stats=list(_stats(comparison, figures, unit)),
        figures=drawn({"pairs": plots.pairs(comparison)}),
        tables=_tables(comparison, figures, unit),
        commands=_commands(comparison),
        warnings=warnings(comparison),
        id=comparison.id,
        cwd=str(comparison.run.cwd),
        objective=objective_beside(comparison.run.objective),
        failure=_failure(comparison.failed) if comparison.failed else None,
        settings=comparison.candidate_settings,
        paired=_paired(comparison),
        unit=unit,
        confidence=f"{comparison.confidence:.0%}",
        of_blocks=_of_blocks(comparison),
        reason=comparison.reason,
    )


def _headline(comparison: Comparison) -> Headline:
    gained, between = words.gained(comparison)
    baseline = comparison.run.settings
    against = words.settings(baseline, separator=" ") if baseline else "the command as it is"
    failed = comparison.failed
    verdict = f"the command failed in the {failed.arm}" if failed else words.verdict(comparison)
    sentence = f"{verdict[0].upper()}{verdict[1:]}{',' if ':' in verdict else ''} with "
    sentence += f"{words.settings(comparison.candidate_settings, separator=' ')} against {against}."
    large = "Failed" if failed else _LARGE.get(comparison.verdict, gained)
    what = "saved" if comparison.run.objective in ("memory", "energy") else "speed-up"
    rest = comparison.reason
    if comparison.ci:
        rest = f"{what} {between} at {comparison.confidence:.0%}, on {words.basis(comparison)}"
    return Headline(large, rest, sentence, comparison.verdict == "faster")


def _figures(comparison: Comparison) -> list[Figure]:
    """Return the compared figure, and those that are not compared, each figure once."""
    figures = [objective(comparison), *arms(comparison.baseline, comparison.candidate)]
    return list({figure.label: figure for figure in figures}.values())


def _stats(comparison: Comparison, figures: list[Figure], unit: str) -> Iterator[tuple[str, str]]:
    for figure in figures[:NUM_IN_HEAD]:
        yield figure.label[0].upper() + figure.label[1:], arrow(*figure.texts)
    void = f", {len(comparison.voided)} void" if comparison.voided else ""
    yield f"{unit.capitalize()}s", f"{comparison.num_pairs} of at most {comparison.max_pairs}{void}"
    if name := machine(comparison.facts):
        yield "Machine", name


def _failure(failed: FailedArm) -> Failure:
    last_lines = failed.last_lines[:MOST_LAST_LINES]
    return Failure(arm=failed.arm, ending=words.ending(failed.exit_code), last_lines=last_lines)


def _paired(comparison: Comparison) -> str:
    """Say how the arms were compared, and how the plot of the pairs is read."""
    if comparison.within:
        how = "Each block compared both arms within one process"
        if comparison.stretch_steps:
            how += f": at least {comparison.stretch_steps} steps with the candidate "
            how += "and at least as many without, twice each"
    else:
        how = "Each pair is one fresh run of each arm, in random order"
    reads = (
        "Above 1× the candidate is better. "
        f"Within the grey band, ±{percent(comparison.margin)}, two arms count as the same."
    )
    step = f" A step is: {comparison.step}." if comparison.step else ""
    return f"{how}. {reads}{step}"


def _of_blocks(comparison: Comparison) -> list[str]:
    """Return sentences on what blocks said before fresh pairs, and on the baseline in the blocks."""
    before, shift = comparison.blocks, comparison.baseline_shift
    return [
        *([words.blocks_before(before)] if before is not None else []),
        *([words.baseline_in_blocks(shift)] if shift is not None else []),
        *([comparison.only_chooses] if comparison.only_chooses else []),
    ]


def _tables(comparison: Comparison, figures: list[Figure], unit: str) -> dict[str, Table]:
    voided = [[str(one.pair), one.reason] for one in comparison.voided]
    medians = [[figure.label, *figure.texts] for figure in figures]
    header = "Figure:text | Baseline:number | Candidate:number"
    return with_rows(
        {
            "pairs": _pairs(comparison, unit),
            "void": Table("Void, and left out", "Pair:number | Why:text", voided, cards=False),
            "arms": Table("Medians of the runs of each arm", header, medians, cards=False),
            "settings": _settings(comparison),
            "set_by": _set_by(comparison),
            "facts": facts(comparison.facts),
        }
    )


def _pairs(comparison: Comparison, unit: str) -> Table:
    caption = f"Each {unit}: the ratio is the baseline's value over the candidate's"
    header = "Pair:number | First:text | Baseline:number | Candidate:number | Ratio:number"
    rows = []
    for number, pair in enumerate(comparison.pairs, start=1):
        ratio = pair.baseline_s / pair.candidate_s if pair.candidate_s > 0 else None
        values = [value_of(side, comparison.run.objective) for side in (pair.baseline_s, pair.candidate_s)]
        rows.append([str(number), pair.first, *values, words.times(ratio, digits=3)])
    return Table(caption, header, rows, cards=False)


def _settings(comparison: Comparison) -> Table:
    caption = "The candidate's settings, read back from the running program"
    header = "Setting:code | The program has:code | Seen at:text | Answer:fate"
    readback = comparison.readback
    rows = [[str(one), *_read_back(readback.get(one.knob))] for one in comparison.candidate_settings]
    return Table(caption, header, rows)


def _read_back(readback: Readback | None) -> list[Cell]:
    if readback is None:
        return [NOTHING, NOTHING, Marked(NOTHING, "not read back")]
    has = f"unknown: {readback.found.reason}" if isinstance(readback.found, Unknown) else readback.found
    return [has, readback.witness or NOTHING, _IN_EFFECT[readback.ok]]


def _set_by(comparison: Comparison) -> Table:
    rows = [_change(change) for change in comparison.set_by]
    header = "Variable:code | Where:code | Held back:text"
    return Table("Variables that the program set itself", header, rows)


def _change(change: EnvironmentChange) -> list[str]:
    value = "@unset" if change.value is None else change.value
    return [f"{change.name}={value}", f"{change.file}:{change.line}", "yes" if change.kept else "no"]


def _commands(comparison: Comparison) -> Lines:
    knobs = [setting.knob for setting in comparison.candidate_settings]
    explained = [(f"What {knob} may change", ["dynotune", "knobs", *words.shell([knob])]) for knob in knobs]
    return [("Compare again", again(comparison)), *explained]
