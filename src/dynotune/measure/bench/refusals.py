"""Refuse what cannot be measured here, and list cautions, before anything runs."""

from collections.abc import Iterable, Mapping, Sequence

from dynotune import knobs
from dynotune.measure.comparison import objective
from dynotune.measure.live import cautions, lanes, ready_line
from dynotune.measure.live.arm_run import refuse_impossible
from dynotune.schema.comparison import ArmName
from dynotune.schema.facts import Facts
from dynotune.schema.run import RunSpec
from dynotune.schema.setting import Setting


def preflight(
    run: RunSpec, arms: Mapping[ArmName, Sequence[Setting]], facts: Facts, *, asked: Iterable[Setting] = ()
) -> list[str]:
    """Refuse arms and an objective that cannot be measured on this machine; return cautions about the others.

    Args:
        arms: all settings of each arm, in the order in which mistakes are reported.
        facts: facts of machine and target.
        asked: further settings that an arm may get later.

    Raises UsageError, CannotRunHere: a setting, an arm, the objective, the lanes or the awaited line is
    impossible.
    """
    settings = list(dict.fromkeys(setting for arm in arms.values() for setting in arm))
    for setting in settings:
        knobs.check_applies(setting, facts)
    for arm in arms.values():
        refuse_impossible(run, arm, facts)
    objective.refuse_impossible(run)
    lanes.refuse_impossible(run, [*settings, *asked])
    if run.ready_pattern is not None:
        ready_line.pattern(run.ready_pattern)
    wary = [caution for setting in settings if (caution := knobs.caution(setting, facts))]
    return [*wary, *cautions.cache_cautions(run, arms), *cautions.launch_cautions(run, arms, facts)]
