"""What is made of a study when it is over: its recipe, its report, and when a late start has paid off."""

from __future__ import annotations

from pathlib import Path

from dynotune.measure.comparison import MeasuredRun, pays_off, read_run
from dynotune.measure.live import Watcher
from dynotune.recipes import recipe_of
from dynotune.report.page import html
from dynotune.schema import recipe as recipes
from dynotune.schema.errors import CannotRunHere, RecordError, StatisticsError
from dynotune.schema.study import BreakEven, Study
from dynotune.search.bench import BASELINE, arm

RECIPE, REPORT = "recipe.toml", "report.html"


def write_results(folder: Path, study: Study, watcher: Watcher) -> None:
    """The recipe, where anything was proved, and the report, beside the study."""
    proved = recipe_of(study) if study.recipe else None
    if proved is not None:
        recipes.write(folder / RECIPE, proved)
    try:
        html.write(folder / REPORT, study, recipe=recipes.text(proved) if proved is not None else "", own_name=True)
    except CannotRunHere as error:
        watcher.warn(f"The report could not be written: {error.message} {error.hint}")


def paid_off(folder: Path, study: Study) -> BreakEven | None:
    """After how many steps the recipe is ahead, from the runs that confirmed it; None without, or where none tells."""
    if not study.recipe or study.run.objective != "throughput":
        return None
    try:
        return pays_off(_runs(folder, study, arm(study.recipe).key), _runs(folder, study, BASELINE.key))
    except StatisticsError:
        return None


def _runs(folder: Path, study: Study, key: str) -> list[MeasuredRun]:
    found = []
    for trial in study.trials:
        if (trial.arm, trial.phase, trial.ended) != (key, "confirm", "measured") or trial.void:
            continue
        try:
            found.append(read_run(folder / trial.run))
        except RecordError:
            continue  # a folder that was tidied away since
    return found
