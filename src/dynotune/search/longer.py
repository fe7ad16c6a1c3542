"""Longer windows of arms that are far faster than the baseline: of as many steps as the baseline times, theirs would be
so short that the kernel's scheduling and batches that lie ready decide.

How long is decided by earlier trials, never by the run that it is about, and from the trials alone: so a study that is
resumed goes on the same. Within a block nothing changes but that no window is longer any more, once the command was
seen to end before one was complete; a value is of one sample or step, so arms may be compared even then.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from dynotune.measure.comparison import measured
from dynotune.measure.live import ENERGY_WINDOW_S, MIN_WINDOW_S, SHORT_WINDOW_S, Outcome
from dynotune.schema import document
from dynotune.schema.errors import RecordError
from dynotune.schema.run import Objective, Run
from dynotune.schema.study import Phase, Study, Trial
from dynotune.search.bench import BASELINE, Arm
from dynotune.search.fit import counts
from dynotune.search.study_window import LEAST_OF_START

MOST = 16
"""Times the planned steps: the more are asked for, the sooner a program has no more."""
LEAST_S: Mapping[Objective, float] = {"throughput": MIN_WINDOW_S, "energy": ENERGY_WINDOW_S}
"""Objectives whose windows may be longer than planned, with what they have to last."""
DID_NOT_LAST = "the command did not last for a longer window"


def multiple(window_s: float, baseline_s: float, start_s: float, least_s: float = MIN_WINDOW_S) -> int:
    """Times the planned steps that an arm's window holds: a power of two, so that arms about as fast have the same.

    As many as make it last what any window does, where the program makes so many steps: `least_s`, and a fifth of
    what it takes to get there, which is next to nothing of a run. Never so many that they take longer than the
    baseline's, so that runs do not; so it is 1 of an arm that is not twice as fast.

    Args:
        window_s: what the planned steps take in the arm; `baseline_s`: in the baseline.
        start_s: of the arm's runs, all but the window.
    """
    wanted_s = max(least_s, LEAST_OF_START * start_s)
    times = 1
    while times * window_s < wanted_s and 2 * times <= MOST and 2 * times * window_s <= baseline_s:
        times *= 2
    return times


def deciding(trials: Sequence[Trial], one: Arm, phase: Phase, block: int) -> list[Trial]:
    """Those that decide on the window of a run: of earlier blocks.

    In a proof, where the arm and the baseline were measured before it, of what ran before it: then all pairs have the
    same.
    """
    if phase in ("ablate", "confirm"):
        earlier = list(itertools.takewhile(lambda trial: trial.phase != phase, trials))
        if all(planned_s(earlier, key, 1) is not None for key in (one.key, BASELINE.key)):
            return earlier
    return list(itertools.takewhile(lambda trial: (trial.phase, trial.block) != (phase, block), trials))


def may_be(study: Study) -> bool:
    """Whether windows of the study may be longer than planned."""
    return study.window_planned and study.run.objective in LEAST_S


def of_run(study: Study, trials: Sequence[Trial], one: Arm, phase: Phase, block: int) -> int | None:
    """Steps of the window of a run; None where runs have none.

    Args:
        trials: those so far, in the place of the study's.
    """
    if study.run.window_steps is not None and ended_early(trials, study.run.window_steps):
        return study.run.window_steps
    return _as_decided(study, deciding(trials, one, phase, block), one)


def _as_decided(study: Study, known: Sequence[Trial], one: Arm) -> int | None:
    """Steps of an arm's window, by these trials: its own, else those of the fastest arm that it contains."""
    planned = study.run.window_steps
    if planned is None or not may_be(study) or ended_early(known, planned):
        return planned
    baseline_s, own_s = planned_s(known, BASELINE.key, planned), planned_s(known, one.key, planned)
    if baseline_s is None:
        return planned
    key = one.key
    if own_s is None:
        within = {trial.arm for trial in known if _is_within(trial.arm, one)}
        own_s, key = min((found, each) for each in within if (found := planned_s(known, each, planned)) is not None)
    starts_s = [trial.wall_s - (trial.window_s or 0.0) for trial in known if trial.arm == key and counts(trial)]
    return planned * multiple(own_s, baseline_s, statistics.median(starts_s), LEAST_S[study.run.objective])


def planned_s(trials: Iterable[Trial], key: str, num_steps: int) -> float | None:
    """What so many steps take in an arm, by its trials that count; None without such."""
    steps_s = [step_s for trial in trials if trial.arm == key and (step_s := _step_s(trial)) is not None]
    return num_steps * statistics.median(steps_s) if steps_s else None


def run_s(study: Study, trials: Sequence[Trial], one: Arm) -> float | None:
    """What a run of the arm takes, by its trials, with the window that it has by now; None without such."""
    own = [trial for trial in trials if trial.arm == one.key and counts(trial)]
    if not own:
        return None
    steps = _as_decided(study, trials, one) or 0
    return statistics.median(
        trial.wall_s + (steps - (trial.window_steps or 0)) * (_step_s(trial) or 0.0) for trial in own
    )


def at_most_s(study: Study, trials: Sequence[Trial], steps: int | None) -> float:
    """What a longer window takes besides, in an arm that is as slow as the baseline after all."""
    further = (steps or 0) - (study.run.window_steps or 0)
    return planned_s(trials, BASELINE.key, further) or 0.0 if further > 0 else 0.0


def with_window(trial: Trial, outcome: Outcome) -> Trial:
    """The trial with what its run's window was, where it had one."""
    found = measured(outcome.run)
    return replace(trial, window_steps=found.num_steps, window_s=found.wall_s) if found.is_timed else trial


def did_not_last(folder: Path, study: Study, steps: int) -> bool:
    """Whether a run that gave nothing had made the steps of the planned window, and was to make more.

    Only these tell of the arm: all others were asked for no more, the baseline too.
    """
    if steps <= (study.run.window_steps or steps):
        return False
    try:
        run = document.read(folder / "run.json", Run)
    except RecordError:
        return False
    made = max((process.num_steps for process in run.processes), default=0)
    return made >= (study.run.warmup_steps or 0) + (study.run.window_steps or 0)


def from_here_on(study: Study, one: Arm, steps: int) -> str:
    """What the watcher is told of a run that did not last."""
    return (
        f"{one.key}: the command did not last for a window of {steps} steps; that run does not count, and from here on "
        f"all time {study.run.window_steps}."
    )


def ended_early(trials: Iterable[Trial], planned: int) -> bool:
    """Whether the command was seen to end before a longer window was complete: then no window is longer."""
    return any(trial.void and trial.ended == "failed" and (trial.window_steps or 0) > planned for trial in trials)


def cautions(study: Study, trials: Sequence[Trial]) -> list[str]:
    """Arms whose windows were too short to the last, where the baseline's was not."""
    baseline_s = planned_s(trials, BASELINE.key, study.run.window_steps or 0)
    if study.run.objective != "throughput" or baseline_s is None or baseline_s < SHORT_WINDOW_S:
        return []
    last_s = {trial.arm: trial.window_s for trial in trials if counts(trial) and trial.window_s is not None}
    short = {key: window_s for key, window_s in last_s.items() if window_s < SHORT_WINDOW_S}
    if not short:
        return []
    shortest = min(short, key=short.__getitem__)
    of = f"The window of {shortest} is" if len(short) == 1 else f"The windows of {len(short)} arms are short, the least"
    lengthen = "Lengthen it with --steps, or let the command run longer."
    return [f"{of} {1000 * short[shortest]:.0f} ms long: little noise is too much. {lengthen}"]


def _step_s(trial: Trial) -> float | None:
    """Of a trial that counts and had a window."""
    if not counts(trial) or trial.window_s is None or not trial.window_steps:
        return None
    return trial.window_s / trial.window_steps


def _is_within(key: str, one: Arm) -> bool:
    """Whether an arm with this key has no setting that the other lacks; both are sorted by knob."""
    rest = f"{key} " if key else ""
    for setting in one.settings:
        rest = rest.removeprefix(f"{setting} ")
    return not rest
