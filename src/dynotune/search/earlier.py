"""Reuse runs on disk: runs of an earlier attempt of the study, or of the study's diagnosis."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from dynotune.launch.records import Records
from dynotune.measure.live import Outcome, compiles, steady_steps, stepping
from dynotune.schema import document
from dynotune.schema.errors import RecordError
from dynotune.schema.facts import Unknown
from dynotune.schema.observation import ProcessState
from dynotune.schema.run import Run
from dynotune.schema.study import Trial

DIAGNOSIS = "diagnosis"
"""Folder below a study's folder, for the runs of its diagnoses."""


def pilots_on_disk(folder: Path, trials: Sequence[Trial]) -> dict[str, Outcome]:
    """Return pilots of an earlier attempt that ended before the window was fixed."""
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
        first_s = starts_s.get(stepped[0].pid)
        if first_s is not None:
            # The trial may seem to have begun earlier than it did.
            slowest_s = max(one_s for one_s in starts_s.values() if one_s is not None)
            first_s -= max(0.0, slowest_s - (trial.time_to_first_step_s or slowest_s))
            found[trial.arm] = Outcome(
                run=run,
                folder=folder / trial.run,
                launched_s=stepped[0].steps[0].end_s - first_s,
                records=stepped,
                all_records=records,
            )
    return found


def plain_pilot(
    folder: Path, plain: Path, processes: Sequence[ProcessState] | Unknown, since_s: float
) -> Trial | None:
    """Return the diagnosis's plain run as the baseline's pilot; None if the run lacks data that a pilot has.

    A program that compiles needs a pilot of its own, which fills the caches of the baseline's runs. (Triton
    kernels that a program wrote itself are not known: its first measured run then compiles them.) A command
    that is so short that it had to run twice also needs a pilot: only a first run gives the length. The very
    first run may read files from a cold disk, unlike later runs: its start counts as long as the recorded
    run's start.

    Args:
        plain: the run's folder, below the study's.
        processes: the processes observed in that run.
        since_s: time on the monotonic clock at which the study would have begun without pauses.
    """
    if isinstance(processes, Unknown) or not all(isinstance(each.compilation, Unknown) for each in processes):
        return None
    trial = Trial(arm="", phase="pilot", block=0, ended="measured", run=str(plain.relative_to(folder)))
    outcome = pilots_on_disk(folder, [trial]).get("")
    if outcome is None or outcome.run.ended_by not in (None, "window") or outcome.run.wall_s is None:
        return None
    if compiles(outcome) or steady_steps(outcome.records[0]) is None:
        return None
    others = []
    for file in plain.parent.glob("*/run.json"):
        with contextlib.suppress(RecordError):
            others.append(document.read(file, Run))
    if any(run.purpose == "live" and run.ended_by == "command" for run in others):
        return None
    slowest_s = (
        max((one.time_to_first_step_s or 0.0 for one in run.processes), default=0.0) for run in others
    )
    known_s = list(filter(None, [outcome.first_step_s, *slowest_s]))
    began_s = max(0.0, outcome.launched_s - since_s)
    return replace(
        trial, began_s=began_s, wall_s=outcome.run.wall_s, time_to_first_step_s=min(known_s, default=None)
    )
