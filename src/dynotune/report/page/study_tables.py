"""Build the tables of a study's page, which repeat each plot's numbers."""

from datetime import UTC, datetime

from dynotune.report.comparison import unverified
from dynotune.report.page.table import (
    MOST_UNKNOWN,
    NOTHING,
    Cell,
    Marked,
    Table,
    facts,
    step,
    tested_findings,
    value_of,
    with_rows,
)
from dynotune.report.study.header import pays_off
from dynotune.report.study.rows import PHASES, Tried, ablated, interval_of, joints, long_time, saved, tried
from dynotune.report.study.sides import breakdowns
from dynotune.schema.diagnosis import Diagnosis
from dynotune.schema.facts import Unknown
from dynotune.schema.study import Estimate, Study
from dynotune.text import words

MOST_FAILURES = 40


def search(study: Study) -> Table:
    """Show how many runs each phase took, and how long."""
    header = "Phase:text | Runs:number | Arms:number | Time:number | Void:number | No value:number"
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
    return Table("Runs by phase", header, rows, cards=False)


def failures(study: Study) -> Table:
    header = "Settings:code | Phase:text | Ended:text | Why:text"
    found = [trial for trial in study.trials if trial.void or trial.ended != "measured"]
    rows = []
    for trial in found[:MOST_FAILURES]:
        ended, why = "void" if trial.void else trial.ended, trial.void or trial.detail or NOTHING
        rows.append([trial.arm or study.begun, PHASES[trial.phase], ended, why])
    return Table("Runs that are void or gave no measurement", header, rows, _more(len(found), MOST_FAILURES))


def not_offered(study: Study) -> Table:
    """Return settings that a finding or a fact names but that were not tried."""
    header = "Setting:code | Not tried, because:text | Named by:text"
    rows = [[str(one.setting), one.reason, ", ".join(one.why) or NOTHING] for one in study.not_offered]
    return Table("Settings that were not tried", header, rows)


def not_known(study: Study) -> Table:
    """List what remained unknown, with the reasons."""
    header = "Not known:text | Why:text"
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
        rows += [[f"{one.id}: {one.missing}", one.reason] for one in study.diagnosis.unknown]
    rows += [
        [name, value.reason] for name, value in sorted(study.facts.items()) if isinstance(value, Unknown)
    ]
    return Table("What could not be known", header, rows[:MOST_UNKNOWN], _more(len(rows), MOST_UNKNOWN))


def readback(study: Study) -> Table:
    header = "Knob:code | Asked:code | Found:code | Witness:text"
    rows = []
    known = {one.knob: one for tested in study.within for one in tested.readback.values()} | study.readback
    for one in known.values():
        found = f"unknown: {one.found.reason}" if isinstance(one.found, Unknown) else one.found
        rows.append(
            [one.knob, one.asked, found, "; ".join(filter(None, (one.witness, one.detail))) or NOTHING]
        )
    return Table("Read back from the running program", header, rows)


def within(study: Study) -> Table:
    """Return what blocks within one process said of each arm, and whether their baseline was as in the plain
    window."""
    header = (
        "Settings:code | Verdict:text | Speed-up:number | Interval:number | Blocks:number | "
        "Baseline:text | Note:text"
    )
    rows = []
    for one in study.within:
        baseline = (
            words.baseline_shift(one.baseline_shift) if one.baseline_shift is not None else words.UNKNOWN
        )
        rows.append(
            [
                words.settings(one.candidate_settings),
                one.verdict or NOTHING,
                words.speedup(one),
                words.interval(one.ci),
                str(one.num_pairs),
                baseline,
                one.only_chooses or one.reason or NOTHING,
            ]
        )
    about = "Blocks within one process; Baseline: time of its step there over its time in the plain window"
    return Table(about, header, rows)


def attempts(study: Study) -> Table:
    header = "Began:text | Ended:text | Ended by:text"
    rows = [[_time(one.began), _time(one.ended), one.ended_by or NOTHING] for one in study.attempts]
    return Table("Attempts", header, rows, cards=False)


def _more(num: int, most: int) -> str:
    return f"{num - most:,} more: study.json has all." if num > most else ""


def _time(iso: str) -> str:
    """Format an ISO 8601 time without fractions of a second; return any other text unchanged."""
    try:
        return datetime.fromisoformat(iso).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError):
        return iso or NOTHING


def tables(study: Study) -> dict[str, Table]:
    """Return each table by its name; a table without rows is left out."""
    made = {
        "step": step(breakdowns(study, (study.begun.capitalize(), "With the recipe"))),
        "settings": _settings(study),
        "worth": _worth(study),
        "together": _together(study),
        "bounds": _bounds(study),
        "pairs": _pairs(study),
        "within": within(study),
        "search": search(study),
        "failures": failures(study),
        "guarded": _guarded(study),
        "pays_off": _pays_off(study),
        "not_offered": not_offered(study),
        "tested": tested_findings("Findings, and how they were tested", study.findings),
        "not_known": not_known(study),
        "readback": readback(study),
        "attempts": attempts(study),
        "facts": facts(study.facts),
    }
    return with_rows(made)


def warnings(study: Study) -> list[str]:
    found = list(study.warnings)
    for label, made in (
        (study.begun.capitalize(), study.diagnosis),
        ("With the recipe", study.diagnosis_with_recipe),
    ):
        if isinstance(made, Diagnosis):
            found += [f"{label}: {note}" for note in made.notes]
    return list(dict.fromkeys([*found, *unverified(study.readback.values())]))


def _settings(study: Study) -> Table:
    header = "Setting:code | Fate:fate | Speed-up alone:number | Interval:number | From:text | Why:text"
    title = f"Each setting alone, against the command {study.begun}"
    return Table(title, header, [_setting(row) for row in tried(study)])


def _setting(row: Tried) -> list[Cell]:
    effect = f"Effect: {row.candidate.effect}." if row.candidate.effect in ("numerics", "semantics") else ""
    reason = f"{row.reason.rstrip('.')}." if row.reason else ""
    return [
        row.candidate.id,
        _fate(row),
        *_ratio(row.alone),
        _from(row.alone),
        " ".join(filter(None, [reason, effect])) or NOTHING,
    ]


def _fate(row: Tried) -> Marked:
    return Marked(row.look.mark, row.look.name)


def _ratio(estimate: Estimate | None) -> list[str]:
    if estimate is None:
        return [NOTHING, NOTHING]
    ci = interval_of(estimate)
    return [words.times(estimate.speedup, digits=words.digits(ci)), words.interval(ci)]


def _from(estimate: Estimate | None) -> str:
    if estimate is None:
        return NOTHING
    unit = "switches" if estimate.phase == "switch" else "blocks" if estimate.num_blocks != 1 else "block"
    beside = f", beside {estimate.against}" if estimate.against else ""
    return f"{PHASES[estimate.phase]}, {estimate.num_blocks} {unit}{beside}"


def _worth(study: Study) -> Table:
    header = (
        "Setting:code | Fate:fate | Worth in the whole:number | Interval:number | p, corrected:number "
        "| Blocks:number"
    )
    rows: list[list[Cell]] = []
    for row in ablated(study):
        if row.worth is None:
            continue
        rows.append(
            [row.candidate.id, _fate(row), *_ratio(row.worth), _p(row.worth), str(row.worth.num_blocks)]
        )
    return Table("The whole with and without one setting", header, rows)


def _p(estimate: Estimate) -> str:
    if estimate.p is None:
        return NOTHING
    return "< 0.001" if estimate.p < 0.001 else f"{estimate.p:.3f}"


def _together(study: Study) -> Table:
    header = (
        "Settings:code | Together:number | Interval:number | Parts, multiplied:number | So they give:text"
    )
    rows = [
        [" ".join(row.ids), *_ratio(row.estimate), words.times(row.parts), row.word] for row in joints(study)
    ]
    return Table(f"Settings together, against the command {study.begun}", header, rows)


def _bounds(study: Study) -> Table:
    header = (
        "Setting:code | Could save at most:number | Saved:number | Interval:number | Answer:text | "
        "Bounded by:text"
    )
    rows = []
    for row in saved(study):
        gain, ends = words.saved(row.speedup), words.saved_interval(row.speedup_ci)
        by = row.candidate.bound_by or NOTHING
        rows.append([row.candidate.id, words.fine_share(row.bound), gain, ends, row.word, by])
    return Table(f"Shares of the time {study.begun}", header, rows)


def _pairs(study: Study) -> Table:
    header = (
        f"Pair:number | First:text | {study.begun.capitalize()}:number | With the recipe:number | "
        "Ratio:number"
    )
    confirmed = study.confirmed
    rows = []
    for at, pair in enumerate(confirmed.pairs if confirmed else [], start=1):
        first = "recipe" if pair.first == "candidate" else "written"
        ratio = (
            words.times(pair.baseline_s / pair.candidate_s, digits=3)
            if pair.candidate_s > 0
            else words.UNKNOWN
        )
        sides = [value_of(side, study.run.objective) for side in (pair.baseline_s, pair.candidate_s)]
        rows.append([str(at), first, *sides, ratio])
    caption = f"Each pair of the confirmation ({study.unit})" if study.unit else "Each pair"
    return Table(caption, header, rows, cards=False)


def _guarded(study: Study) -> Table:
    header = (
        "Settings:code | Compared:text | Largest difference:number | Of the program itself:number | "
        "Allowed:number"
        " | Answer:fate"
    )
    rows: list[list[Cell]] = []
    for one in study.guarded:
        own = "not asked" if one.own is None else f"{one.own:.2g}"
        answer = Marked("●", "within") if one.ok else Marked("×", "beyond")
        figures = [f"{one.difference:.2g}", own, f"{one.tolerance:.2g}"]
        rows.append([one.arm, f"{one.num_values} {one.what}", *figures, answer])
    return Table(
        "Results with a setting against results without, one seed, relative differences", header, rows
    )


def _pays_off(study: Study) -> Table:
    header = f"{study.begun.capitalize()}:text | With the recipe:text | Paid for:text"
    if study.break_even is None:
        return Table("", header, [])
    starts = [words.duration(study.break_even.baseline_start_s), words.duration(study.break_even.start_s)]
    caption = "From the launch to steady steps, their own time left out"
    return Table(caption, header, [[*starts, pays_off(study)]], cards=False)
