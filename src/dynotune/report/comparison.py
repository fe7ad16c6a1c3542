"""Lay out a comparison: both arms side by side, each pair, what was read back, and the verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from dynotune.report import loudness, machine
from dynotune.report.blocks import (
    Answer,
    Column,
    CommandLine,
    Commands,
    Fields,
    Forest,
    Interval,
    Lines,
    Listing,
    Marked,
    Note,
    On,
    Phrase,
    Piece,
    Report,
    Section,
    Span,
    Table,
    Tone,
    wary,
)
from dynotune.report.repetition import again
from dynotune.schema.comparison import ArmSummary, Comparison, FailedArm, Pair, Verdict, Voided
from dynotune.schema.facts import Unknown
from dynotune.schema.run import EnvironmentChange, Objective, Readback
from dynotune.schema.setting import Setting
from dynotune.text import words

VERDICT_TONES: dict[Verdict | None, Tone] = {
    "faster": "good",
    "slower": "bad",
    "same": "note",
    "undecided": "wary",
    None: "bad",
}
NUM_ARMS = 2
NUM_IN_HEAD = 3
"""Number of figures of both arms that stand in a page's head."""
NUM_OTHERS_ON_SCREEN = 2
"""Number of figures that are not compared, on a screen."""
NUM_NOTES_ON_SCREEN = 2
"""Number of void pairs, of variables that the program set, and of warnings each, on a screen."""
MOST_LAST_LINES = 40
NOTHING = "–"
AS_IT_IS = "the command as it is"
_LARGE = {"same": "No effect", "undecided": "Undecided"}
_IN_EFFECT = {
    True: Marked("●", "in effect", "good"),
    False: Marked("×", "not in effect", "bad"),
    None: Marked("□", "unverified", "wary"),
}


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of both arms in words. `num_known`: the number of arms of which the figure is known."""

    label: str
    texts: list[str]
    num_known: int

    @classmethod
    def of(cls, label: str, values: Sequence[float | None], written: Callable[[float | None], str]) -> Figure:
        return cls(label, list(map(written, values)), sum(value is not None for value in values))


def layout(comparison: Comparison) -> Report:
    compared = [_compared(comparison)]
    failed = [_failure(comparison, comparison.failed)] if comparison.failed is not None else []
    has_arms = comparison.pairs or (comparison.failed is None and comparison.verdict != "same")
    # Before the end, or after an interruption, only the pairs are known.
    has_figures = comparison.verdict is not None or comparison.baseline != ArmSummary()
    return Report(
        kicker=kicker("dynotune compare", comparison.run.objective),
        answer=_answer(comparison),
        command=words.shell(comparison.run.command),
        head=[
            Fields([("command", words.command(comparison.run.command))], on=On.LONG),
            Fields([("compared", compared[0])], on=On.LONG if has_arms else On.TERMINAL),
            Fields(list(_stats(comparison)), on=On.PAGE),
        ],
        settings=list(map(str, comparison.candidate_settings)),
        sections=[
            *failed,
            *([Note(comparison.reason, tone="dim")] if comparison.reason else []),
            _pairs(comparison),
            *([_arms(comparison)] if has_arms and has_figures else []),
            *_notes(comparison),
            *few(wary(sentences(comparison))[:-1], "warnings"),
            wary(sentences(comparison))[-1],
            _settings(comparison),
            _results(),
            _repeat(comparison),
            machine.section(comparison.facts),
        ],
        footer=f"Comparison {comparison.id}. All that is shown here is in its comparison.json.",
    )


def kicker(command: str, objective: Objective) -> str:
    """Name what made a page, and the objective where it is not the usual one."""
    return command if objective == "throughput" else f"{command} · {objective}"


def _compared(comparison: Comparison) -> Phrase:
    settings = words.settings(comparison.candidate_settings, separator=" ")
    return (Span(settings), Span(" against ", "dim"), against(comparison))


def against(comparison: Comparison) -> str:
    own = comparison.run.settings
    return words.settings(own, separator=" ") if own else AS_IT_IS


def _answer(comparison: Comparison) -> Answer:
    found, between = words.answered(comparison)
    interval = f"{between} at {comparison.confidence:.0%}" if between else ""
    tone = VERDICT_TONES[comparison.verdict]
    arms = (
        f"with {words.settings(comparison.candidate_settings, separator=' ')} against {against(comparison)}."
    )
    if comparison.failed is not None:
        found = f"the command failed in the {comparison.failed.arm}"
        line = f"no verdict: {found}, {words.ending(comparison.failed.exit_code)}"
        return Answer(large="Failed", line=line, sentence=f"{_capital(found)} {arms}", tone=tone)
    if comparison.verdict is None and comparison.pairs:
        num = len(comparison.pairs)
        found = f"stopped after {num} {noun(comparison)}{'' if num == 1 else 's'}"
        interval = ", ".join(words.times(_ratio(pair)) for pair in comparison.pairs)
        line = f"no verdict: {found}: {interval}"
        return Answer(
            large="Stopped", line=line, rest=interval, sentence=f"{_capital(found)} {arms}", tone=tone
        )
    if comparison.verdict is None:
        line = f"no verdict: no {noun(comparison)} was complete"
        return Answer(large="No verdict", line=line, sentence=f"No {noun(comparison)} is complete", tone=tone)
    basis = f"on {words.basis(comparison)}" if comparison.num_pairs else ""
    is_ratio = comparison.verdict not in ("faster", "slower")
    rest = ", ".join(filter(None, [f"speed-up {interval}" if is_ratio and interval else interval, basis]))
    line = f"{found}{f' ({rest})' if rest else ''}"
    sentence = f"{_capital(found)}{',' if ':' in found else ''} {arms}"
    large = _LARGE.get(comparison.verdict or "", _capital(found) if comparison.verdict else "No verdict")
    return Answer(large=large, line=line, rest=rest, sentence=sentence, tone=tone)


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _ratio(pair: Pair) -> float | None:
    return pair.baseline_s / pair.candidate_s if pair.candidate_s > 0 else None


def _figures(comparison: Comparison) -> list[Figure]:
    """Return the compared figure, and those that are not compared, each figure once."""
    figures = [objective(comparison), *others(comparison.baseline, comparison.candidate)]
    return list({figure.label: figure for figure in figures}.values())


def _stats(comparison: Comparison) -> Iterator[tuple[str, str]]:
    for figure in _figures(comparison)[:NUM_IN_HEAD]:
        yield _capital(figure.label), words.arrow(*figure.texts)
    yield f"{_capital(noun(comparison))}s", _num_pairs(comparison)
    if name := machine.name_of(comparison.facts):
        yield "Machine", name


def _num_pairs(comparison: Comparison) -> str:
    void = f", {len(comparison.voided)} void" if comparison.voided else ""
    return f"{max(comparison.num_pairs, len(comparison.pairs))} of at most {comparison.max_pairs}{void}"


def noun(comparison: Comparison) -> str:
    return "block" if comparison.within else "pair"


def _failure(comparison: Comparison, failed: FailedArm) -> Section:
    chosen = comparison.candidate_settings if failed.arm == "candidate" else comparison.run.settings
    arm = f"{failed.arm} ({words.settings(chosen, separator=' ')})"
    what = f"It failed in the {arm}, {words.ending(failed.exit_code)}."
    blocks: list[Piece] = [Note((Span(what, "bad"),))]
    lines = [words.plain(line) for line in failed.last_lines[:MOST_LAST_LINES]]
    blocks.append(Listing("The last lines that it printed", lines))
    return Section("The command failed", blocks)


def _pairs(comparison: Comparison) -> Section:
    """Lay out the picture of the pairs, its numbers, and the pairs that do not count."""
    unit = noun(comparison)
    ratios = [
        (at, ratio) for at, pair in enumerate(comparison.pairs, 1) if (ratio := _ratio(pair)) is not None
    ]
    whole = comparison.speedup if comparison.speedup and comparison.speedup > 0 else None
    rows = [
        Interval("", f"{unit} {at}", ratio, None, "○", "dim", (words.times(ratio), ""))
        for at, ratio in ratios
    ]
    if whole is not None:
        figures = (words.speedup(comparison), f"({words.interval(comparison.ci)})" if comparison.ci else "")
        rows.insert(0, Interval("", "all", whole, sound_interval(comparison.ci), "●", "note", figures))
    legend: list[tuple[str, Tone, str]] = [("○", "dim", f"one {unit}")]
    if whole is not None:
        legend.insert(0, ("●", "note", f"all together, with the interval at {comparison.confidence:.0%}"))
    label = f"The speed-up with its interval, and each {unit}"
    forest = Forest(label, rows, comparison.margin, legend=legend)
    void = [[str(one.pair), one.reason] for one in comparison.voided]
    return Section(
        "The interval",
        [
            *([Note(sentence) for sentence in (_how(comparison), *_in_blocks(comparison))] if ratios else []),
            *([forest] if rows else []),
            pairs_table(comparison, ("Baseline", "Candidate"), ("baseline", "candidate")),
            Table("Void, and left out", [Column(_capital(unit), "number"), Column("Why")], void, cards=False),
        ],
        on=On.PAGE,
    )


def sound_interval(ci: tuple[float, float] | None) -> tuple[float, float] | None:
    return ci if ci is not None and ci[0] > 0 and ci[1] < float("inf") else None


def pairs_table(
    comparison: Comparison, sides: tuple[str, str], arms: tuple[str, str], caption: str = ""
) -> Table:
    """Lay out a row for each pair.

    Args:
        sides: headers of the columns of both arms; `arms`: what each is called as the one that ran first.
    """
    names = dict(zip(("baseline", "candidate"), arms, strict=True))
    rows = []
    for number, pair in enumerate(comparison.pairs, start=1):
        values = [value_of(side, comparison.run.objective) for side in (pair.baseline_s, pair.candidate_s)]
        rows.append([str(number), names[pair.first], *values, words.times(_ratio(pair), digits=3)])
    caption = caption or f"Each {noun(comparison)}: the ratio is the baseline's value over the candidate's"
    numbers = [Column(side, "number") for side in (*sides, "Ratio")]
    header = [Column(_capital(noun(comparison)), "number"), Column("First"), *numbers]
    return Table(caption, header, rows, folded=True, cards=False)


def value_of(value: float, objective: Objective) -> str:
    """Write one run's value of an objective for a column: bytes, joules or seconds, without more words."""
    if objective == "memory":
        return words.num_bytes(value)
    return f"{value:.4g}" if objective == "energy" else words.duration(value, column=True)


def _how(comparison: Comparison) -> str:
    """Say how the arms were compared, and how the picture of the pairs is read."""
    if comparison.within:
        how = "Each block compared both arms within one process"
        if comparison.stretch_steps:
            how += f": at least {comparison.stretch_steps} steps with the candidate "
            how += "and at least as many without, twice each"
    else:
        how = "Each pair is one fresh run of each arm, in random order"
    margin = words.share_margin(comparison.margin)
    step = f" A step is: {comparison.step}." if comparison.step else ""
    return f"{how}. Right of 1× the candidate is better. Grey: less than {margin} difference.{step}"


def _in_blocks(comparison: Comparison) -> list[str]:
    """Return sentences on what blocks said before fresh pairs, and on the baseline in the blocks."""
    before, shift = comparison.blocks, comparison.baseline_shift
    return [
        *([words.blocks_before(before)] if before is not None else []),
        *([words.baseline_in_blocks(shift)] if shift is not None else []),
        *([comparison.only_chooses] if comparison.only_chooses else []),
    ]


def _arms(comparison: Comparison) -> Section:
    found, between = words.answered(comparison)
    is_proved = comparison.verdict in ("faster", "slower")
    ratio = "ratio" if comparison.run.objective in ("memory", "energy") else "speed-up"
    compared = objective(comparison)
    answer = found if is_proved and comparison.speedup is not None else words.speedup(comparison)
    sides = [_settings_of(comparison.run.settings), _settings_of(comparison.candidate_settings)]
    rows: list[list[Phrase | Lines]] = [
        ["settings", *sides, ""],
        [compared.label, *compared.texts, Span(answer, VERDICT_TONES[comparison.verdict])],
        [f"{comparison.confidence:.0%} interval", "", "", between or words.interval(comparison.ci)],
        ["blocks" if comparison.within else "pairs", "", "", _num_pairs(comparison)],
    ]
    num_brief = len(rows) + NUM_OTHERS_ON_SCREEN
    for figure in others(comparison.baseline, comparison.candidate):
        # Within one run both arms share one start, so there are no start times to compare.
        if figure.label != compared.label and not (comparison.within and figure.num_known < NUM_ARMS):
            rows.append([(Span(text, "dim")) for text in (figure.label, *figure.texts, "")])
    header = [Column("", "text"), Column("baseline"), Column("candidate"), Column("" if is_proved else ratio)]
    table = Table("Medians of the runs of each arm", header, rows, cards=False, on=On.ALL_OF_IT)
    return Section("Both arms", [replace(table, rows=rows[:num_brief], on=On.SCREEN), table])


def _settings_of(settings: Sequence[Setting]) -> Lines:
    return Lines(tuple(map(str, settings)) or ("as it is",))


def others(baseline: ArmSummary, candidate: ArmSummary) -> list[Figure]:
    """Show figures that are not compared; one that is unknown for both arms is left out, except the first
    two."""
    arms = (baseline, candidate)
    always = [
        Figure.of("time to first step", [arm.time_to_first_step_s for arm in arms], words.duration),
        Figure.of("a step, median", [arm.median_step_s for arm in arms], words.duration),
    ]
    rest = [
        Figure.of("start, until steady", [arm.start_s for arm in arms], words.duration),
        Figure.of("waits for the loader", [arm.loader_wait_share for arm in arms], words.share),
        Figure.of("memory, peak", [arm.peak_rss_bytes for arm in arms], words.num_bytes),
        Figure.of("device memory, peak", [arm.peak_device_bytes for arm in arms], words.num_bytes),
    ]
    return always + [figure for figure in rest if figure.num_known]


def objective(comparison: Comparison) -> Figure:
    """Show the compared objective of both arms, each as it was measured: the median of the arm's runs.

    The stated ratio comes from pairs, so the quotient of the two medians may be another number.
    """
    arms, unit = (comparison.baseline, comparison.candidate), comparison.unit
    if comparison.run.objective == "throughput":
        rates = [arm.samples_per_s for arm in arms]
        if unit != "sample":
            rates = [1 / arm.s_per_step if arm.s_per_step else None for arm in arms]
        return Figure.of(f"{unit}s/s", rates, words.rate)
    label = {
        "latency-p99": "a step, 99th percentile",
        "call-latency-p99": "a call, 99th percentile",
        "time-to-first-step": "time to first step",
        "memory": "peak of memory",
        "energy": f"energy a {unit}",
    }[comparison.run.objective]
    values = [arm.value for arm in arms]
    return Figure.of(label, values, lambda value: words.value(value, comparison.run.objective, unit))


def _notes(comparison: Comparison) -> list[Piece]:
    notes: list[Piece] = [Note(text, tone="dim", on=On.LONG) for text in _measured(comparison)]
    voided = [
        Note(void(one), label=f"void: {noun(comparison)} {one.pair}", on=On.TERMINAL)
        for one in comparison.voided
    ]
    set_by: list[Piece] = []
    for change in comparison.set_by:
        kept = ", which dynotune prevented" if change.kept else ""
        said = f"{_change(change)} in {change.file}:{change.line}{kept}"
        set_by.append(Note((Span("set by the program: ", "dim"), said), on=On.TERMINAL))
    return [*notes, *few(voided, "void"), *few(set_by, "set by the program")]


def few(notes: Sequence[Piece], what: str) -> list[Piece]:
    """Keep the first notes on a screen, which says how many more there are."""
    left = len(notes) - NUM_NOTES_ON_SCREEN
    rest = [replace(note, on=note.on & ~On.SCREEN) for note in notes[NUM_NOTES_ON_SCREEN:]]
    more = [Note(f"{left} more {what}: --verbose shows all", tone="dim", on=On.SCREEN)] if left > 0 else []
    return [*notes[:NUM_NOTES_ON_SCREEN], *rest, *more]


def void(voided: Voided) -> Phrase:
    """Say why a pair does not count, and its ratio if it has values."""
    if voided.values is None:
        return voided.reason
    ratio = words.times(_ratio(voided.values))
    return (voided.reason, Span(f" ({ratio}, not evidence)", "dim"))


def _change(change: EnvironmentChange) -> str:
    return (
        f"{change.name} removed" if change.value is None else str(Setting(f"env.{change.name}", change.value))
    )


def _measured(comparison: Comparison) -> list[str]:
    lines = [f"A step is: {comparison.step}."] if comparison.step else []
    if comparison.within and comparison.stretch_steps:
        lines.append(
            f"Each block compared both arms within one process: at least {comparison.stretch_steps} steps "
            "with the candidate and as many without, twice each. --in-process never compares fresh processes."
        )
        lines += [
            f"While {one.knob}={one.asked} was on, dynotune read {one.found} ({one.witness})."
            for one in comparison.readback.values()
            if one.ok
        ]
    if comparison.blocks is not None:
        lines.append(words.blocks_before(comparison.blocks))
    shift = comparison.baseline_shift
    if shift is not None and (shift.is_shown or loudness.is_verbose()):
        lines.append(words.baseline_in_blocks(shift))
    if comparison.run.objective == "time-to-first-step":
        lines.append("Each run ended when its first step was known; the device was synchronised at its end.")
    if comparison.run.objective == "latency-p99":
        lines.append("The device was synchronised after every step.")
    if comparison.run.objective == "call-latency-p99":
        lines.append(
            "Each call was timed by itself, until the device was done; time between calls is left out."
        )
    run = comparison.run
    is_timed = not comparison.within and bool(comparison.pairs)
    if is_timed and run.window_steps is not None and run.warmup_steps is not None:
        more = comparison.candidate.window_steps
        # After a wait for the loader, a window may end early, with a whole burst of batches.
        waits = any(arm.loader_wait_share for arm in (comparison.baseline, comparison.candidate))
        beside = f" (up to {more} for the far faster candidate)" if more is not None else ""
        lines.append(
            f"Each run timed {'at most ' if waits else ''}{run.window_steps} steps as a whole{beside}, "
            f"after {run.warmup_steps} steps of warm-up."
        )
    return lines


def sentences(comparison: Comparison) -> list[str]:
    """Write the comparison's warnings as sentences, and name the settings whose effect was not verified."""
    return [*comparison.warnings, *unverified(comparison.readback.values())]


def unverified(readbacks: Iterable[Readback]) -> list[str]:
    """Write a sentence for each setting that could not be read back from the program (`ok` is None)."""
    said = []
    for one in readbacks:
        if one.ok is None:
            why = one.found.reason if isinstance(one.found, Unknown) else one.detail
            said.append(f"{one.knob}={one.asked} is unverified" + (f": {why.rstrip('.')}." if why else "."))
    return said


def _settings(comparison: Comparison) -> Section:
    readback = comparison.readback
    rows = [[str(one), *_read_back(readback.get(one.knob))] for one in comparison.candidate_settings]
    header = [
        Column("Setting", "code"),
        Column("The program has", "code"),
        Column("Seen at"),
        Column("Answer", "whole"),
    ]
    set_by = [
        [
            f"{one.name}={'@unset' if one.value is None else one.value}",
            f"{one.file}:{one.line}",
            "yes" if one.kept else "no",
        ]
        for one in comparison.set_by
    ]
    variables = [Column("Variable", "code"), Column("Where", "code"), Column("Prevented")]
    return Section(
        "Settings",
        [
            Table("The candidate's settings, read back from the running program", header, rows),
            Table("Variables that the program set itself", variables, set_by),
        ],
        on=On.PAGE,
    )


def _read_back(readback: Readback | None) -> list[Phrase | Marked]:
    if readback is None:
        return [NOTHING, NOTHING, Marked(NOTHING, "not read back")]
    has = f"unknown: {readback.found.reason}" if isinstance(readback.found, Unknown) else readback.found
    return [has, readback.witness or NOTHING, _IN_EFFECT[readback.ok]]


def _results() -> Section:
    said = (
        "A comparison times both arms and reads their settings back. It does not compare losses or outputs: ",
        Span("dynotune tune", "code"),
        " does, for settings that may change rounding.",
    )
    return Section("Results", [Note(said)], on=On.PAGE)


def _repeat(comparison: Comparison) -> Section:
    knobs = [setting.knob for setting in comparison.candidate_settings]
    explained = [
        CommandLine(f"What {knob} may change", ["dynotune", "knobs", *words.shell([knob])]) for knob in knobs
    ]
    where = ("In ", Span(str(comparison.run.cwd), "code"), ":")
    lines = [CommandLine("Compare again", again(comparison)), *explained]
    return Section("Repeat it", [Note(where), Commands(lines)], on=On.PAGE)
