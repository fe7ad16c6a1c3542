"""What `dynotune tune` was asked, what it tried, and what it found."""

from collections.abc import Iterable
from typing import Literal

import msgspec

from dynotune.schema.attribution import Predicted
from dynotune.schema.comparison import Comparison
from dynotune.schema.diagnosis import Diagnosis
from dynotune.schema.facts import Facts, Unknown
from dynotune.schema.knob import Effect
from dynotune.schema.recipe import Recipe
from dynotune.schema.run import Objective as Objective
from dynotune.schema.run import Readback, RunSpec
from dynotune.schema.setting import Setting

Phase = Literal["pilot", "switch", "prune", "confirm"]
"""A pilot warms caches and tells how long a run takes; the others are the stages of a search that measure."""
Stage = Literal["know", "switch", "prune", "confirm"]
Ended = Literal["measured", "failed", "out-of-memory", "rejected", "timeout", "wrong-results"]
OutcomeKind = Literal[
    "proved",  # in the recipe
    "no-effect",  # the interval lies within the margin
    "slower",
    "not-needed",  # it helps alone; without it the whole is as fast
    "unproved",  # not decided in the time there was
    "failed",
    "out-of-memory",
    "rejected",  # it did not take effect
    "wrong-results",  # the guard of losses or outputs
    "not-tried",
]


PART_ERROR = 0.05
"""Of calling a setting's part in a recipe proved that has none; over all settings of a round."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A value of a knob that may help here.

    Args:
        why: ids of the findings that name it, else names of the facts that do; empty where only the user asked for it.
        bound: of the baseline's time, the largest share that it can save (0 to 1); Unknown where nothing bounds it.
        predicted: the share that it saves as far as running the recorded timeline again tells.
        needs: ids of candidates, of which any arm with it holds one; empty where it stands alone.
        in_process: it can change at any step, so that one process can try it.
        needs_warm_cache: its first run leaves something behind that later ones find, such as compiled code; so every
            arm with it first runs once unmeasured. False where only a first run of the setting alone is asked for.
    """

    setting: Setting
    effect: Effect
    why: list[str] = []
    asked: bool = False
    bound: float | Unknown = Unknown("nothing bounds it")
    bound_by: str = ""
    predicted: Predicted | None = None
    needs: list[str] = []
    in_process: bool = False
    needs_warm_cache: bool = True

    @property
    def id(self) -> str:
        return str(self.setting)

    @property
    def by_user(self) -> bool:
        """Tell whether the user asked for it; also true if no origin is recorded, as in older studies."""
        return self.asked or not self.why


def without(key: str, id_: str, candidates: Iterable[Candidate]) -> str | None:
    """Return the key of an arm without one of its settings and what needs that; None if it has not got it.

    A value may hold spaces.
    """
    before, found, after = f" {key} ".partition(f" {id_} ")
    if not found:
        return None
    rest = f"{before} {after}".strip()
    for one in candidates:
        if id_ in one.needs:
            shorter = without(rest, one.id, ())
            rest = rest if shorter is None else shorter
    return rest


class NotOffered(msgspec.Struct, frozen=True):
    """A setting that a finding, or facts, name and that is not tried, with the reason."""

    setting: Setting
    reason: str
    why: list[str] = []


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One run of one arm, in order of time.

    Args:
        arm: its settings as `Arm.key` has them, sorted, a space between; "" is the baseline.
        block: runs of one block are compared with each other; counted from 1 within a phase; 0 for a pilot.
        value: of the objective, lower is better, above 0: seconds a sample (or step), seconds, bytes, joules a sample;
            None where it gave none.
        void: causes outside the arm's own processes; then the value counts for nothing.
        began_s, wall_s: since the first attempt began, and how long it took; the sum over attempts, without pauses.
        run: its folder below the study's; HOST:FOLDER of a run that another worker on the study made.
        lane: that it was in, from 1; 0 if it had the whole machine. All runs of a block are in one lane.
    """

    arm: str
    phase: Phase
    block: int
    ended: Ended
    value: float | None = None
    void: str = ""
    began_s: float = 0.0
    wall_s: float = 0.0
    time_to_first_step_s: float | None = None
    run: str = ""
    detail: str = ""
    lane: int = 0

    @property
    def was_elsewhere(self) -> bool:
        return ":/" in self.run


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """Runs that one host makes, in this order: a block of all arms of a round, or a pair.

    Args:
        arms: the settings of each.
        repeats: of a run that something else disturbed; 0 for a pair, which ends with such a run.
        attempt: runs of the block so far that count for nothing.
    """

    schema: str = "dynotune.block/1"
    phase: Phase
    number: int
    arms: list[list[Setting]]
    repeats: int
    attempt: int = 0


class BlockResult(msgspec.Struct, frozen=True, kw_only=True):
    """Trials of a block that another host ran, and pilots before them; `out_of_time`: the block is not whole."""

    schema: str = "dynotune.block-result/1"
    trials: list[Trial] = []
    readback: dict[str, Readback] = {}
    warnings: list[str] = []
    out_of_time: bool = False


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison of two arms, from the blocks of one stage.

    Args:
        num_blocks: that hold a value of both, void ones not counted; within one process, switches there and back.
        speedup: `against` over `arm`: above 1, `arm` is better. `ci`: at `confidence`, two-sided.
        p: one-sided, of no gain; after Holm's correction where `corrected_over` is above 1.
    """

    arm: str
    against: str
    phase: Phase
    speedup: float
    ci: tuple[float, float] | None
    num_blocks: int
    confidence: float = 0.95
    p: float | None = None
    corrected_over: int = 1


class CandidateOutcome(msgspec.Struct, frozen=True):
    """Fate of a candidate, and why, in one sentence."""

    kind: OutcomeKind
    reason: str


class Guarded(msgspec.Struct, frozen=True, kw_only=True):
    """Losses or outputs of an arm against the baseline's, under one seed.

    Args:
        what: "losses" or "outputs".
        reference: the type that both are held against, "float64" or "float32"; "" where they are held against each
            other, and a fixed tolerance says what is allowed.
        difference: relative; with a reference the typical error of the arm, else the largest difference, measured by
            what was allowed there. `own`: likewise of the baseline, without a reference against itself, None where
            that was not asked; `tolerance`: what was allowed.
        ratio, ci: of the arm's errors over those that rounding explains.
        error_ci: of `difference`, at 95%. `baseline_error`: of the baseline, unrounded; `no_worse`: the arm's errors
            are proved equal to those or less.
        where: of what the difference is, in words. `module`: the first that departs; "" where that is not known.
        num_not_finite: values of the arm that are NaN or infinite where the baseline's are not.
        reason: in one sentence, with what was allowed and why.
    """

    arm: str
    what: Literal["losses", "outputs"]
    difference: float
    own: float | None
    tolerance: float
    num_values: int
    ok: bool
    where: str = ""
    num_not_finite: int = 0
    reason: str = ""
    reference: str = ""
    ratio: float | None = None
    ci: tuple[float, float] | None = None
    error_ci: tuple[float, float] | None = None
    baseline_error: float | None = None
    no_worse: bool = False
    module: str = ""


class BreakEven(msgspec.Struct, frozen=True, kw_only=True):
    """A recipe that starts later and steps faster: steps after which it is ahead; None where it never is.

    Args:
        start_s: from the launch to the begin of the window, less what its steps before take at the steady pace;
            `baseline_start_s` likewise.
    """

    start_s: float
    baseline_start_s: float
    after_steps: int | None


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """Arms that run side by side in blocks, with the baseline. What a round asks is fixed before its first run.

    Args:
        kind: `prune` leaves each setting of `whole` out of it; `alone` runs each setting by itself; `check` compares
            `whole` with one smaller arm.
        arms: by the id of a setting, the arm without it, or with it alone; what needs it is left out with it.
    """

    kind: Literal["prune", "alone", "check"]
    whole: list[Setting] = []
    arms: dict[str, list[Setting]] = {}
    values: dict[str, list[Setting]] = {}
    first_block: int
    num_blocks: int


class BaseRecipe(msgspec.Struct, frozen=True):
    """A recipe that a study began from: all of its runs have the recipe's settings. `file`: where it was read."""

    file: str
    recipe: Recipe


class Attempt(msgspec.Struct, frozen=True):
    """Time of work on it, from when to when (ISO 8601, UTC); `ended_by`: "done", "user", "error"; "" while it runs."""

    began: str
    ended: str = ""
    ended_by: str = ""


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """Document `study.json`.

    Args:
        name: in a database, where workers share it; empty without one.
        run: how every run is made, with the settings of the recipe that the study begins from. Its `warmup_steps` and
            `window_steps` are as asked until the first run is planned, and then as planned.
        stage: the search is in it; what is before it is decided.
        selected: what that stage left to confirm; None before it ended.
        confirmed: `selected` against the baseline, on fresh pairs; the last of `within` that is faster, where the time
            did not hold those; None where neither is there.
        lane_notes: which lanes there are, and why others are left out.
    """

    schema: str = "dynotune.study/2"
    id: str
    name: str = ""
    run: RunSpec
    budget_s: float
    allow: list[Effect] = []
    extra: list[str] = []
    exclude: list[str] = []
    values: list[str] = []
    margin: float = 0.01
    run_s: float | None = None
    unit: str = ""
    step: str = ""
    facts: Facts = {}
    base_recipe: BaseRecipe | None = None
    diagnosis: Diagnosis | Unknown = Unknown("not yet made")
    diagnosis_with_recipe: Diagnosis | Unknown = Unknown("not yet made")
    candidates: list[Candidate] = []
    not_offered: list[NotOffered] = []
    trials: list[Trial] = []
    estimates: list[Estimate] = []
    guarded: list[Guarded] = []
    readback: dict[str, Readback] = {}
    outcomes: dict[str, CandidateOutcome] = {}
    noise: float | None = None
    stage: Stage = "know"
    within: list[Comparison] = []
    rounds: list[Round] = []
    selected: list[Setting] | None = None
    recipe: list[Setting] | None = None
    confirmed: Comparison | None = None
    break_even: BreakEven | None = None
    verdict: str = ""
    finished: bool = False
    warnings: list[str] = []
    lane_notes: list[str] = []
    attempts: list[Attempt] = []

    @property
    def begun(self) -> str:
        """Say what the baseline is, in words after "the command"."""
        return "as written" if self.base_recipe is None else "as begun"
