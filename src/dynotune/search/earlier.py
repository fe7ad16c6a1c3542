"""What an earlier sitting of a study, or its diagnosis, left on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from dynotune.launch.record import Records
from dynotune.measure.cold import compiled_s
from dynotune.measure.one_run import Outcome, stepping
from dynotune.measure.pilot import steady_steps
from dynotune.schema import document
from dynotune.schema.errors import RecordError
from dynotune.schema.facts import Unknown
from dynotune.schema.observation import ProcessState
from dynotune.schema.run import Run
from dynotune.schema.study import Trial


def pilots_on_disk(folder: Path, trials: Sequence[Trial]) -> dict[str, Outcome]:
    """Pilots of an earlier sitting that ended before the window was fixed."""
    found = {}
    for trial in trials:
        if trial.phase != "pilot" or trial.ended != "measured":
            continue
        try:
            run = document.read(folder / trial.run / "run.json", Run)
            records = Records(folder / trial.run).update()
        except RecordError:
            continue
        if not (stepped := stepping(records)):
            continue
        starts_s = {process.pid: process.time_to_first_step_s for process in run.processes}
        first_s = trial.time_to_first_step_s or starts_s.get(stepped[0].pid)
        if first_s is not None:
            found[trial.arm] = Outcome(
                run=run,
                folder=folder / trial.run,
                launched_s=stepped[0].steps[0].end_s - first_s,
                records=stepped,
                all_records=records,
            )
    return found


def plain_pilot(folder: Path, plain: Path, processes: Sequence[ProcessState] | Unknown, since_s: float) -> Trial | None:
    """The diagnosis's plain run in the place of the baseline's pilot; None where it does not say what that would.

    What compiles needs a pilot of its own: it fills the caches that the baseline's runs have. The first run of all may
    read its files from a cold disk, which none after it does: it counts as if it had begun as soon as the recorded one.

    Args:
        plain: the run's folder, below the study's.
        processes: what was seen in it.
        since_s: of the monotonic clock, when the study would have begun without pauses.
    """
    if isinstance(processes, Unknown) or not all(isinstance(each.compilation, Unknown) for each in processes):
        return None
    trial = Trial(arm="", phase="pilot", block=0, ended="measured", run=str(plain.relative_to(folder)))
    outcome = pilots_on_disk(folder, [trial]).get("")
    if outcome is None or outcome.run.ended_by != "window" or outcome.run.wall_s is None:
        return None
    if compiled_s(outcome) or steady_steps(outcome.records[0]) is None:
        return None
    began_s = max(0.0, outcome.launched_s - since_s)
    firsts_s = [first_s for first_s in (outcome.first_step_s, *_recorded_firsts_s(plain.parent)) if first_s is not None]
    return replace(trial, began_s=began_s, wall_s=outcome.run.wall_s, time_to_first_step_s=min(firsts_s, default=None))


def _recorded_firsts_s(diagnosis: Path) -> list[float]:
    """Times to the first step of recorded runs, each of its slowest process."""
    found = []
    for file in diagnosis.glob("*/run.json"):
        try:
            run = document.read(file, Run)
        except RecordError:
            continue
        starts_s = [each.time_to_first_step_s for each in run.processes if each.time_to_first_step_s is not None]
        if run.purpose == "trace" and starts_s:
            found.append(max(starts_s))
    return found
