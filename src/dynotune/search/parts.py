"""Tell what a recipe gives without its settings that round, and what those add."""

import math
from collections.abc import Sequence

from msgspec.structs import replace

from dynotune.measure.comparison import launched
from dynotune.schema.arm import Arm, arm
from dynotune.schema.facts import Unknown
from dynotune.schema.setting import Setting
from dynotune.schema.study import Estimate, Parts, Study
from dynotune.search.bench import complete
from dynotune.search.fit import Fit
from dynotune.search.results import rounding
from dynotune.search.running import estimate_of
from dynotune.search.switch import switched

FEWEST_BLOCKS = 2
LATE = "there was no time to measure the settings that do not round by themselves"


def exact_arm(study: Study, settings: Sequence[Setting]) -> Arm:
    """Return the arm of the settings that do not round, without those that are meaningless without the
    others."""
    out = rounding(study, settings)
    return arm(complete([setting for setting in settings if setting not in out], study.candidates))


def has_parts(study: Study, settings: Sequence[Setting]) -> bool:
    """Return whether some of the settings round and others do not."""
    return bool(exact_arm(study, settings).settings) and bool(rounding(study, settings))


def parts_of(study: Study, settings: Sequence[Setting]) -> Parts | Unknown | None:
    """Return what the settings give with and without those that round; None for settings of one kind.

    Fresh blocks come before blocks within one process. Unknown: neither measured both arms.
    """
    if not has_parts(study, settings):
        return None
    whole, exact = arm(settings), exact_arm(study, settings)
    return _fresh(study, whole, exact) or _within(study, whole, exact) or Unknown(LATE)


def _fresh(study: Study, whole: Arm, exact: Arm) -> Parts | None:
    fit = Fit(trial for trial in study.trials if trial.phase == "prune")
    gains = fit.gain(exact.key), fit.gain(whole.key, exact.key)
    if any(gain is None or gain.num_blocks < FEWEST_BLOCKS or gain.ci is None for gain in gains):
        return None
    of_exact, of_rounding = gains
    assert of_exact is not None and of_rounding is not None
    return Parts(
        exact=estimate_of(exact.key, "", "prune", of_exact),
        rounding=estimate_of(whole.key, exact.key, "prune", of_rounding),
    )


def _within(study: Study, whole: Arm, exact: Arm) -> Parts | None:
    both, alone = _in_process(study, whole), _in_process(study, exact)
    if both is None or alone is None or both.ci is None or alone.ci is None:
        return None
    # The arms were measured in blocks of their own, so the squares of their errors add.
    half = math.hypot(*(math.log(one.ci[1] / one.ci[0]) / 2 for one in (both, alone) if one.ci is not None))
    ratio = both.speedup / alone.speedup
    added = replace(
        both,
        against=exact.key,
        speedup=ratio,
        ci=(ratio * math.exp(-half), ratio * math.exp(half)),
        num_blocks=min(both.num_blocks, alone.num_blocks),
    )
    return Parts(exact=alone, rounding=added)


def _in_process(study: Study, one: Arm) -> Estimate | None:
    """Return what blocks within one process say of an arm against the baseline: of its own test, else in
    turns."""
    for tested in reversed(study.within):
        answer = launched.proved(tested)
        if arm(tested.candidate_settings) == one and answer.speedup is not None and not tested.only_chooses:
            return Estimate(
                arm=one.key,
                against="",
                phase="switch",
                speedup=answer.speedup,
                ci=answer.ci,
                num_blocks=answer.num_pairs,
                confidence=answer.confidence,
            )
    return switched(study).get(one.key)
