"""Result of a comparison of two arms (sets of settings): a baseline and a candidate."""

from typing import Annotated, Literal

import msgspec

from dynotune.schema.facts import Facts
from dynotune.schema.run import EnvironmentChange, Readback, RunSpec
from dynotune.schema.setting import Setting

ArmName = Literal["baseline", "candidate"]
Unit = Literal["sample", "step"]
"""What a value of an objective is divided by; a step only where samples cannot be counted."""
ValueUnit = Literal["", "s", "s/sample", "s/step", "J/sample", "J/step", "bytes"]
"""Unit of a value of an objective; "" before the runs of a study have shown what can be counted."""
Drawn = Literal["pair", "block"]
"""What is randomised: a pair of runs, or a block of stretches or starts."""
Verdict = Literal["faster", "slower", "same", "undecided"]

InProcess = Literal["auto", "only", "never"]

LOOKS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
"""Numbers of pairs after which an interim analysis of the comparison takes place."""
MIN_PAIRS = 2
TELLING_PAIRS = 3
"""Fewest pairs for a conclusion if the spread of runs is not known otherwise; so few show only large
differences."""
MAX_PAIRS = 12
"""Largest number of pairs in a comparison by default."""
MOST_PAIRS = LOOKS[-1]
PRECISION = 0.2
"""Width of the confidence interval, relative to the gain, at which the comparison is precise enough."""
CONFIDENCE = 0.95
"""Confidence of verdicts and intervals, unless a comparison states another one."""
MARGIN = 0.01
"""Relative difference below which arms count as equal."""
MOST_SHIFT = 0.02
"""Largest relative change of the baseline within a live run with which blocks of that run still prove
something."""


class Pair(msgspec.Struct, frozen=True):
    """One run of the baseline and one run of the candidate; `first` is the arm that ran first.

    Args:
        baseline_s, candidate_s: value of the objective, lower is better. For `throughput`: wall-clock seconds
            of the timed window per sample (per step if samples are unknown). For `memory` the values are
            bytes, for `energy` joules per sample, in spite of the fields' names.
        lane: number of the lane (GPU and cores) of both runs, from 1; 0 if each run had the whole machine.
        repeats: of a block within one process, the log ratio of an arm's first stretch to its second, of each
            arm that has two; none of a pair of runs.
    """

    first: ArmName
    baseline_s: float
    candidate_s: float
    baseline_run: str = ""
    candidate_run: str = ""
    lane: int = 0
    repeats: tuple[float, ...] = ()


class Spread(msgspec.Struct, frozen=True):
    """Variance of a pair's log ratio, and the variance's degrees of freedom."""

    variance: Annotated[float, msgspec.Meta(ge=0)]
    df: Annotated[int, msgspec.Meta(ge=0, le=1000)]


class BaselineShift(msgspec.Struct, frozen=True, kw_only=True):
    """How the baseline's steps changed within a live run, since the plain window before all recordings and
    switches.

    Args:
        ratio: time of a step (of a sample, if all samples are known) in the baseline's stretches of blocks,
            over its time in the plain window; 1 if nothing changed.
        ci: interval of `ratio` at 95%; None if there are too few blocks to estimate the noise.
        num_blocks: number of blocks.
        pace: time of a fixed loop in Python just before and after these stretches, over that around the plain
            window. The host's core was slower by this; 1 if unknown.
    """

    ratio: Annotated[float, msgspec.Meta(gt=0)]
    ci: tuple[float, float] | None = None
    num_blocks: int = 0
    pace: Annotated[float, msgspec.Meta(gt=0)] = 1.0

    @property
    def is_shown(self) -> bool:
        """Tell whether the baseline changed by more than its noise and the host's pace explain, and by
        `MOST_SHIFT`.

        A step whose time is the host's changes by `pace`, one whose time is the device's does not change by
        it, so anything between explains the ratio.
        """
        least, most = min(1.0, self.pace), max(1.0, self.pace)
        is_noise = self.ci is None or (self.ci[0] <= most and least <= self.ci[1])
        return not is_noise and not least / (1 + MOST_SHIFT) <= self.ratio <= most * (1 + MOST_SHIFT)


class BlocksAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of blocks within one process, before fresh pairs stated the speed-up; fields as in
    `Comparison`."""

    verdict: Verdict | None
    speedup: float | None
    ci: tuple[float, float] | None
    pairs: list[Pair]
    baseline_shift: BaselineShift | None = None
    only_chooses: str = ""


class Voided(msgspec.Struct, frozen=True):
    """A pair that does not count, because a cause outside the arms' own processes disturbed a run.

    `pair`: the pair's number in order of time, from 1.
    """

    pair: int
    reason: str
    values: Pair | None = None


class FailedArm(msgspec.Struct, frozen=True):
    """An arm whose command failed.

    Args:
        exit_code: exit code of the command; minus the signal's number if a signal ended it.
        last_lines: the last lines of the command's stderr, or of stdout if stderr was empty.
    """

    arm: ArmName
    exit_code: int
    last_lines: list[str] = []
    run: str = ""


class ArmSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Medians over the runs of one arm; None for a value that is not known.

    Args:
        start_s: seconds from launch to steady steps, minus the usual time of the steps before; includes
            compilation.
        window_steps: the most steps that a run of this arm timed, if more than the comparison's
            `window_steps`.
    """

    value: float | None = None
    s_per_sample: float | None = None
    samples_per_s: float | None = None
    s_per_step: float | None = None
    median_step_s: float | None = None
    time_to_first_step_s: float | None = None
    start_s: float | None = None
    loader_wait_share: float | None = None
    peak_rss_bytes: int | None = None
    peak_device_bytes: int | None = None
    window_steps: int | None = None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Document `comparison.json`. `speedup`: baseline time over candidate time; above 1, the candidate is
    faster.

    For objectives other than throughput, `speedup` is likewise the baseline's value over the candidate's,
    lower values are better, and `faster` means that the candidate is better.

    Args:
        run: how every run is made, with the baseline's settings. `warmup_steps` and `window_steps` are the
            requested numbers until the pilot runs have determined better numbers.
        speedup, ci: speed-up and its confidence interval; None until two pairs are complete.
        against: ratio with which `speedup` is compared: `faster` is above it, and `slower` is below it.
        run_s: typical duration of a run in seconds; None until the pilot runs have ended.
        within: whether `pairs` are blocks within one process.
        only_within: whether no fresh pairs are to follow these blocks.
        baseline_shift: of the live run of these blocks; None if nothing is known of it.
        only_chooses: why these blocks choose between arms but prove no speed-up; empty if they prove one.
        blocks: what blocks said, if fresh pairs followed them.
        pooled: whether the answer is of the pairs and these blocks together, since the pairs alone did not
            decide.
        set_by: changes that the program itself made to environment variables among the settings.
        lane_notes: sentences on the lanes in use, and on devices that are left out.
    """

    schema: str = "dynotune.comparison/2"
    id: str
    run: RunSpec
    candidate_settings: list[Setting]
    verdict: Verdict | None = None
    failed: FailedArm | None = None
    speedup: float | None = None
    ci: tuple[float, float] | None = None
    confidence: float = CONFIDENCE
    against: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    margin: float = 0.01
    num_pairs: int = 0
    max_pairs: int = 12
    precision: float | None = None
    reason: str = ""
    num_pairs_to_settle: int | None = None
    seen: Spread | None = None
    within: bool = False
    only_within: bool = False
    baseline_shift: BaselineShift | None = None
    only_chooses: str = ""
    blocks: BlocksAnswer | None = None
    pooled: bool = False
    stretch_steps: int = 0
    unit: Unit = "sample"
    step: str = ""
    run_s: float | None = None
    baseline: ArmSummary = ArmSummary()
    candidate: ArmSummary = ArmSummary()
    readback: dict[str, Readback] = {}
    voided: list[Voided] = []
    pairs: list[Pair] = []
    set_by: list[EnvironmentChange] = []
    warnings: list[str] = []
    lane_notes: list[str] = []
    facts: Facts = {}
