"""The tables of a study's page on what was run, what held, and what is not known."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from dynotune.report.study.rows import PHASES, long_time
from dynotune.schema.diagnosis import Diagnosis
from dynotune.schema.facts import Unknown, Value
from dynotune.schema.study import Study

NOTHING = "–"
MOST_FAILURES = 40
MOST_UNKNOWN = 60


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text.

    Args:
        header: of the columns, as "Setting:code | Why:text". A kind is text, code, number, fate or part; a `fate` or
            `part` is "mark text", the mark being for the eye alone.
        cards: a small screen shows each row as a block.
        more: what was left out; "" for nothing.
    """

    caption: str
    header: str
    rows: list[list[str]]
    more: str = ""
    cards: bool = True

    @property
    def columns(self) -> list[tuple[str, str]]:
        """Name and kind of each column."""
        return [(name, kind) for name, _, kind in (column.rpartition(":") for column in self.header.split(" | "))]


def search(study: Study) -> Table:
    """How many runs, and how long, by phase."""
    header = "Phase:text | Runs:number | Arms:number | Time:number | Void:number | No value:number"
    rows = []
    for phase, name in PHASES.items():
        runs = [trial for trial in study.trials if trial.phase == phase]
        if not runs:
            continue
        time = long_time(sum(trial.wall_s for trial in runs))
        broken = sum(trial.ended != "measured" and not trial.void for trial in runs)
        voided = sum(bool(trial.void) for trial in runs)
        rows.append([name, f"{len(runs):,}", str(len({trial.arm for trial in runs})), time, str(voided), str(broken)])
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
    """Settings that a finding or facts name and that were not tried."""
    header = "Setting:code | Not tried, because:text | Named by:text"
    rows = [[str(one.setting), one.reason, ", ".join(one.why) or NOTHING] for one in study.not_offered]
    return Table("Settings that were not tried", header, rows)


def not_known(study: Study) -> Table:
    """What nobody could say, with the reason."""
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
    rows += [[name, value.reason] for name, value in sorted(study.facts.items()) if isinstance(value, Unknown)]
    return Table("What could not be known", header, rows[:MOST_UNKNOWN], _more(len(rows), MOST_UNKNOWN))


def readback(study: Study) -> Table:
    header = "Knob:code | Asked:code | Found:code | Witness:text"
    rows = []
    for one in study.readback.values():
        found = f"unknown: {one.found.reason}" if isinstance(one.found, Unknown) else one.found
        rows.append([one.knob, one.asked, found, one.witness or NOTHING])
    return Table("Read back from the running program", header, rows)


def attempts(study: Study) -> Table:
    header = "Began:text | Ended:text | Ended by:text"
    rows = [[_time(one.began), _time(one.ended), one.ended_by or NOTHING] for one in study.attempts]
    return Table("Attempts", header, rows, cards=False)


def facts(study: Study) -> Table:
    header = "Fact:code | Value:code"
    rows = [[name, _fact(value)] for name, value in sorted(study.facts.items())]
    return Table("What held on this machine", header, rows)


def _more(num: int, most: int) -> str:
    return f"{num - most:,} more: study.json has all." if num > most else ""


def _time(iso: str) -> str:
    """A time of ISO 8601 without its seconds' fractions; as it stands where it is none."""
    try:
        return datetime.fromisoformat(iso).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError):
        return iso or NOTHING


def _fact(value: Value | Unknown) -> str:
    if isinstance(value, Unknown):
        return f"unknown: {value.reason}"
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)
