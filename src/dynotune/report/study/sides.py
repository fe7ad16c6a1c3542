"""Provide what a recipe changed: the objective, and where the time goes, before and after.

Both sides of either come from the confirmation, so that their ratio is the speed-up that the study states. A
diagnosis gives the parts of a bar and never its length, because its single window was timed at another time
than the proof.
"""

import math
import statistics
from dataclasses import replace

from dynotune.report.breakdown import Breakdown
from dynotune.schema.facts import Unknown
from dynotune.schema.study import Study

BEFORE_AND_AFTER = ("before", "after")


def levels(study: Study) -> tuple[float, float] | None:
    """Return the objective's value before and with the recipe; their ratio is the stated speed-up.

    The first value is the geometric mean over the confirmation's baseline. None if nothing was confirmed.
    """
    confirmed = study.confirmed
    if not study.recipe or confirmed is None or confirmed.speedup is None or not confirmed.speedup > 0:
        return None
    values = [pair.baseline_s for pair in confirmed.pairs if pair.baseline_s > 0]
    if not values:
        return None
    before = statistics.geometric_mean(values)
    after = before / confirmed.speedup
    return (before, after) if after > 0 and math.isfinite(after) else None


def thousand_steps(study: Study) -> tuple[float, float] | None:
    """Return what 1,000 steps take before and with the recipe: seconds, or joules if the objective is energy.

    None if nothing was confirmed, if the objective is another one, or if it is not known how many samples a
    step has.
    """
    values = levels(study)
    if values is None or study.run.objective not in ("throughput", "energy"):
        return None
    num = 1000.0
    if study.per == "sample":
        steps = study.diagnosis if isinstance(study.diagnosis, Unknown) else study.diagnosis.steps
        if isinstance(steps, Unknown) or not steps.samples_per_s:
            return None
        num *= steps.samples_per_s * steps.step_s
    before, after = values
    return num * before, num * after


def breakdowns(study: Study, names: tuple[str, str] = BEFORE_AND_AFTER) -> list[Breakdown]:
    """Return where the time goes before and with the recipe; before alone if both cannot be compared."""
    compared = before_and_after(study, names)
    if not isinstance(compared, Unknown):
        return list(compared)
    before = Breakdown.of(names[0], study.diagnosis)
    return [] if isinstance(before, Unknown) else [before]


def before_and_after(
    study: Study, names: tuple[str, str] = BEFORE_AND_AFTER
) -> tuple[Breakdown, Breakdown] | Unknown:
    """Return where the time of a sample or step goes on both sides: lengths as proved, parts as diagnosed.

    Unknown if the proof timed no steps, if a side was not diagnosed, or if something disturbed one of the
    diagnoses, because the parts of the two bars would then come from different conditions.
    """
    before, after = (
        Breakdown.of(name, diagnosis)
        for name, diagnosis in zip(names, (study.diagnosis, study.diagnosis_with_recipe), strict=True)
    )
    if isinstance(before, Unknown):
        return before
    if isinstance(after, Unknown):
        return after
    for diagnosis in (study.diagnosis, study.diagnosis_with_recipe):
        if not isinstance(diagnosis, Unknown) and diagnosis.disturbance:
            return Unknown(f"{diagnosis.disturbance} during one of the two diagnoses")
    values = levels(study)
    if study.run.objective != "throughput" or values is None:
        return Unknown("the proof timed no steps")
    before_s, after_s = values
    return replace(before, whole_s=before_s, of_what=study.per), replace(
        after, whole_s=after_s, of_what=study.per
    )
