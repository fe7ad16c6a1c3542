"""Lay out the tables of a study's page: the numbers of each picture, and what only a page has room for."""

from __future__ import annotations

from datetime import UTC, datetime

from dynotune.report.blocks import Cell, Column, Forest, Interval, Marked, Note, On, Piece, Section, Table
from dynotune.report.comparison import NOTHING, noun, pairs_table, sound_interval
from dynotune.report.places import prose
from dynotune.report.study.header import pays_off
from dynotune.report.study.rows import (
    PHASES,
    UNITS,
    Tried,
    ablated,
    interval_of,
    joints,
    long_time,
    saved,
    tried,
)
from dynotune.report.tested import tested_findings
from dynotune.schema.comparison import Comparison
from dynotune.schema.diagnosis import Diagnosis
from dynotune.schema.facts import Unknown
from dynotune.schema.study import Estimate, Study
from dynotune.text import words

MOST_FAILURES = 40
MOST_UNKNOWN = 60


def settings(study: Study) -> Table:
    header = [
        Column("Setting", "code"),
        Column("Fate", "whole"),
        Column("Speed-up alone", "number"),
        Column("Interval", "number"),
        Column("From"),
        Column("Why"),
    ]
    rows = [_setting(row) for row in tried(study)]
    return Table(
        f"Each setting alone, against the command {study.begun}", header, rows, folded=True, on=On.PAGE
    )


def _setting(row: Tried) -> list[Cell]:
    effect = f"Effect: {row.candidate.effect}." if row.candidate.effect in ("numerics", "semantics") else ""
    reason = f"{prose(row.reason).rstrip('.')}." if row.reason else ""
    why = " ".join(filter(None, [reason, effect])) or NOTHING
    return [row.candidate.id, _fate(row), *_ratio(row.alone), _from(row.alone), why]


def _fate(row: Tried) -> Marked:
    return Marked(row.look.mark, row.look.name, row.look.tone)


def _ratio(estimate: Estimate | None) -> list[str]:
    if estimate is None:
        return [NOTHING, NOTHING]
    ci = interval_of(estimate)
    return [words.times(estimate.speedup, digits=words.digits(ci)), words.interval(ci)]


def _from(estimate: Estimate | None) -> str:
    if estimate is None:
        return NOTHING
    unit = UNITS.get(estimate.phase, ("block", "blocks"))[estimate.num_blocks != 1]
    beside = f", beside {estimate.against}" if estimate.against else ""
    return f"{PHASES[estimate.phase]}, {estimate.num_blocks} {unit}{beside}"


def worth(study: Study) -> Table:
    numbers = ("Worth in the whole", "Interval", "p, corrected", "Blocks")
    header = [
        Column("Setting", "code"),
        Column("Fate", "whole"),
        *(Column(name, "number") for name in numbers),
    ]
    rows: list[list[Cell]] = [
        [row.candidate.id, _fate(row), *_ratio(row.worth), _p(row.worth), str(row.worth.num_blocks)]
        for row in ablated(study)
        if row.worth is not None
    ]
    return Table("The whole with and without one setting", header, rows, folded=True)


def _p(estimate: Estimate) -> str:
    if estimate.p is None:
        return NOTHING
    return "< 0.001" if estimate.p < 0.001 else f"{estimate.p:.3f}"


def not_offered(study: Study) -> Table:
    """Return settings that a finding or a fact names but that were not tried."""
    header = [Column("Setting", "code"), Column("Not tried, because"), Column("Named by")]
    rows = [[str(one.setting), one.reason, ", ".join(one.why) or NOTHING] for one in study.not_offered]
    return Table("Named by a finding, but not tried", header, rows, folded=True, on=On.PAGE)


def tested(study: Study) -> Table:
    return tested_findings("Findings, and how they were tested", study.findings)


def together(study: Study) -> Section:
    numbers = ("Together", "Interval", "Parts, multiplied")
    header = [
        Column("Settings", "code"),
        *(Column(name, "number") for name in numbers),
        Column("So they give"),
    ]
    rows = [
        [" ".join(row.ids), *_ratio(row.estimate), words.times(row.parts), row.word] for row in joints(study)
    ]
    table = Table(f"Settings together, against the command {study.begun}", header, rows)
    said = Note(
        "What the settings gave together, and what they would have given if each had its effect alone."
    )
    return Section("Settings together", [said, table] if rows else [], on=On.PAGE)


def bounds(study: Study) -> Section:
    numbers = ("Could save at most", "Saved", "Interval")
    names = [Column("Setting", "code"), *(Column(name, "number") for name in numbers), Column("Answer")]
    rows = []
    for row in saved(study):
        gain, ends = words.saved(row.speedup), words.saved_interval(row.speedup_ci)
        by = row.candidate.bound_by or NOTHING
        rows.append([row.candidate.id, words.fine_share(row.bound), gain, ends, row.word, by])
    table = Table(f"Shares of the time {study.begun}", [*names, Column("Bounded by")], rows)
    said = Note("What a setting could save at most, by the diagnosis, and what it saved alone.")
    return Section("Bounds and what was measured", [said, table] if rows else [], on=On.PAGE)


def confirmation(study: Study) -> Section:
    """Lay out the turns of the proof, pairs or blocks, as a picture and as a table."""
    confirmed = study.confirmed
    if confirmed is None or not confirmed.pairs:
        return Section("Confirmation", [], on=On.PAGE)
    turn = noun(confirmed)
    pairs = [pair for pair in confirmed.pairs if pair.candidate_s > 0]
    ratios = [pair.baseline_s / pair.candidate_s for pair in pairs]
    rows = [
        Interval("", f"{turn} {at}", ratio, None, "○", "dim", (words.times(ratio), ""))
        for at, ratio in enumerate(ratios, start=1)
    ]
    if confirmed.speedup is not None and confirmed.speedup > 0:
        figures = (words.speedup(confirmed), f"({words.interval(confirmed.ci)})" if confirmed.ci else "")
        ci = sound_interval(confirmed.ci)
        rows.insert(0, Interval("", "all", confirmed.speedup, ci, "●", "good", figures))
    what, owner = ("recipe", "recipe's") if study.recipe else ("settings", "settings'")
    forest = Forest(f"The {owner} speed-up with its interval, and each {turn}", rows, confirmed.margin)
    caption = f"Each {turn} of the confirmation ({study.unit})" if study.unit else f"Each {turn}"
    sides = (study.begun.capitalize(), f"With the {what}")
    table = pairs_table(confirmed, sides, ("written", what), caption)
    return Section("Confirmation", [Note(_confirmed_by(study, confirmed)), forest, table], on=On.PAGE)


def _confirmed_by(study: Study, confirmed: Comparison) -> str:
    """Say what was compared with what, and whether these turns had a part in choosing it, as blocks have."""
    compared = "The recipe" if study.recipe else words.settings(confirmed.candidate_settings, separator=" ")
    if confirmed.within:
        turns = "in blocks within one process that were also used to choose the settings"
    else:
        turns = "on pairs that were not used to choose settings"
        if confirmed.pooled and confirmed.blocks is not None:
            turns += f". The interval is of them and of {len(confirmed.blocks.pairs)} blocks, which did"
    return f"{compared} against the command {study.begun}, {turns}."


def results(study: Study) -> Section:
    """Lay out how results with a setting differ, and what a slower start costs."""
    numbers = ("Largest difference", "Of the program itself", "Allowed")
    header = [Column("Settings", "code"), Column("Compared"), *(Column(name, "number") for name in numbers)]
    rows: list[list[Cell]] = []
    for one in study.guarded:
        own = "not asked" if one.own is None else f"{one.own:.2g}"
        answer = Marked("●", "within", "good") if one.ok else Marked("×", "beyond", "bad")
        figures = [f"{one.difference:.2g}", own, f"{one.tolerance:.2g}"]
        rows.append([one.arm, f"{one.num_values} {one.what}", *figures, answer])
    caption = "Results with a setting against results without, one seed, relative differences"
    guarded = Table(caption, [*header, Column("Answer", "whole")], rows)
    return Section(
        "Results and start", [guarded, _pays_off(study)] if rows or study.break_even else [], on=On.PAGE
    )


def _pays_off(study: Study) -> Table:
    header = [Column(name) for name in (study.begun.capitalize(), "With the recipe", "Paid for")]
    if study.break_even is None:
        return Table("", header, [])
    starts = [words.duration(study.break_even.baseline_start_s), words.duration(study.break_even.start_s)]
    caption = "From the launch to steady steps, without the time of the steps themselves"
    return Table(caption, header, [[*starts, pays_off(study)]], cards=False)


def search(study: Study) -> Section:
    """Lay out what was run, folded: whoever wants the answer has it above."""
    made: list[Piece] = [_within(study), _phases(study), _failures(study), _attempts(study)]
    tables = [table for table in made if isinstance(table, Table) and table.rows]
    return Section("The search", tables, on=On.PAGE)


def _phases(study: Study) -> Table:
    """Show how many runs each phase took, and how long."""
    numbers = ("Runs", "Arms", "Time", "Void", "No value")
    rows = []
    for phase, name in PHASES.items():
        runs = [trial for trial in study.trials if trial.phase == phase]
        if not runs:
            continue
        time = long_time(sum(trial.wall_s for trial in runs))
        broken = sum(trial.ended != "measured" and not trial.void for trial in runs)
        voided = sum(bool(trial.void) for trial in runs)
        rows.append(
            [name, f"{len(runs):,}", str(len({trial.arm for trial in runs})), time, str(voided), str(broken)]
        )
    header = [Column("Phase"), *(Column(name, "number") for name in numbers)]
    return Table("Runs by phase", header, rows, folded=True, cards=False)


def _failures(study: Study) -> Table:
    header = [Column("Settings", "code"), Column("Phase"), Column("Ended"), Column("Why")]
    found = [trial for trial in study.trials if trial.void or trial.ended != "measured"]
    rows = []
    for trial in found[:MOST_FAILURES]:
        ended, why = "void" if trial.void else trial.ended, trial.void or trial.detail or NOTHING
        rows.append([trial.arm or study.begun, PHASES[trial.phase], ended, prose(why)])
    more = _more(len(found), MOST_FAILURES)
    return Table("Runs that are void or gave no measurement", header, rows, more=more, folded=True)


def _within(study: Study) -> Table:
    """Return what blocks within one process said of each arm, and whether their baseline was as in the plain
    window."""
    numbers = [Column(name, "number") for name in ("Speed-up", "Interval", "Blocks")]
    header = [Column("Settings", "code"), Column("Verdict"), *numbers, Column("Baseline"), Column("Note")]
    rows = []
    for one in study.within:
        shift = one.baseline_shift
        baseline = words.baseline_shift(shift) if shift is not None else words.UNKNOWN
        found = [one.verdict or NOTHING, words.speedup(one), words.interval(one.ci), str(one.num_pairs)]
        note = one.only_chooses or one.reason or NOTHING
        rows.append([words.settings(one.candidate_settings, separator=" "), *found, baseline, note])
    about = (
        "Blocks within one process. Baseline: the time of its step there, divided by its time in the "
        "window before anything was switched"
    )
    return Table(about, header, rows, folded=True)


def _attempts(study: Study) -> Table:
    rows = [[_time(one.began), _time(one.ended), one.ended_by or NOTHING] for one in study.attempts]
    header = [Column("Began"), Column("Ended"), Column("Ended by")]
    return Table("Attempts", header, rows, folded=True, cards=False)


def _time(iso: str) -> str:
    """Format an ISO 8601 time without fractions of a second; return any other text unchanged."""
    try:
        return datetime.fromisoformat(iso).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError):
        return iso or NOTHING


def not_known(study: Study) -> Table:
    """List what remained unknown, with the reasons."""
    rows = []
    for label, made in (
        ("the diagnosis", study.diagnosis),
        ("the diagnosis with the recipe", study.diagnosis_with_recipe),
    ):
        if isinstance(made, Unknown):
            rows.append([label, made.reason])
            continue
        if isinstance(made.shares, Unknown):
            rows.append([f"{label}: where a step goes", made.shares.reason])
        if isinstance(made.steps, Unknown):
            rows.append([f"{label}: how long a step takes", made.steps.reason])
    if isinstance(study.diagnosis, Diagnosis):
        rows += [[f"{one.id}: {one.missing}", prose(one.reason)] for one in study.diagnosis.unknown]
    rows += [
        [name, value.reason] for name, value in sorted(study.facts.items()) if isinstance(value, Unknown)
    ]
    more = _more(len(rows), MOST_UNKNOWN)
    return Table(
        "What could not be known",
        [Column("Not known"), Column("Why")],
        rows[:MOST_UNKNOWN],
        more=more,
        folded=True,
    )


def readback(study: Study) -> Table:
    header = [Column("Knob", "code"), Column("Asked", "code"), Column("Found", "code"), Column("Witness")]
    rows = []
    known = {one.knob: one for tested in study.within for one in tested.readback.values()} | study.readback
    for one in known.values():
        found = f"unknown: {one.found.reason}" if isinstance(one.found, Unknown) else one.found
        witness = "; ".join(filter(None, (one.witness, one.detail))) or NOTHING
        rows.append([one.knob, one.asked, found, witness])
    return Table("Read back from the running program", header, rows)


def _more(num: int, most: int) -> str:
    return f"{num - most:,} more: study.json has all." if num > most else ""
