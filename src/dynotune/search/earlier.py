"""What an earlier sitting of a study left on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dynotune.launch.record import Records
from dynotune.measure.one_run import Outcome, stepping
from dynotune.schema import document
from dynotune.schema.errors import RecordError
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
        stepped = stepping(records)
        starts_s = {process.pid: process.time_to_first_step_s for process in run.processes}
        first_s = starts_s.get(stepped[0].pid) if stepped else None
        if first_s is not None:
            found[trial.arm] = Outcome(
                run=run,
                folder=folder / trial.run,
                launched_s=stepped[0].steps[0].end_s - first_s,
                records=stepped,
                all_records=records,
            )
    return found
