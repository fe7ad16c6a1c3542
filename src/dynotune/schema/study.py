"""The study of `dynotune tune`: its request, its trials, and its results."""

from collections.abc import Iterable
from typing import Literal

import msgspec
from msgspec.structs import force_setattr, replace

from dynotune.schema.arm import arm_key, canonical, ids_of
from dynotune.schema.attribution import Predicted
from dynotune.schema.comparison import Comparison, Unit, ValueUnit
from dynotune.schema.diagnosis import Diagnosis, Finding, Switched
from dynotune.schema.facts import Facts, Unknown
from dynotune.schema.knob import Effect
from dynotune.schema.recipe import Recipe
from dynotune.schema.run import Objective as Objective
from dynotune.schema.run import Readback, RunSpec
from dynotune.schema.setting import Setting

Phase = Literal["pilot", "switch", "prune", "confirm"]
"""Phases of a study: the pilot warms caches and shows how long a run takes; the other phases measure."""
Stage = Literal["know", "switch", "prune", "confirm"]
Ended = Literal["measured", "failed", "out-of-memory", "rejected", "timeout", "wrong-results", "unchecked"]
OutcomeKind = Literal[
    "proved",  # the recipe includes the setting
    "no-effect",  # the confidence interval lies within the margin
    "slower",
    "not-needed",  # the setting helps alone, but all others together are as fast without it
    "unproved",  # the available time was too short for a verdict
    "failed",
    "out-of-memory",
    "rejected",  # the setting did not take effect
    "wrong-results",  # the guard found that losses or outputs differ
    "unchecked",  # the setting rounds, and its results could not be checked
    "not-tried",
]

PART_ERROR = 0.05
"""Probability of calling the contribution of a useless setting proved, over all settings of a round."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate: a value of a knob that may help here.

    Args:
        why: ids of the findings that suggest the candidate, else names of facts; empty if only the user
            asked.
        bound: the largest share of the baseline's time that the candidate can save (0 to 1); Unknown without
            a bound.
        predicted: the share of a step that the candidate saves in a replay of the recorded timeline.
        needs: ids of candidates: an arm with this candidate must also have one of these; empty if it works
            alone.
        in_process: whether the setting can change at any step, so that a single process can try it.
        needs_warm_cache: whether the first run fills caches for later runs, for instance with compiled code;
            then every arm with this candidate first runs once unmeasured. False if only a first run of the
            setting alone is needed.
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
    def key(self) -> str:
        """Return the key of the arm that has this setting alone."""
        return arm_key([self.setting])

    @property
    def rounds(self) -> bool:
        """Return whether the setting changes how numbers are rounded, so that its results have to be
        checked."""
        return self.effect == "numerics"

    @property
    def by_user(self) -> bool:
        """Return whether the user asked for this candidate; also true in older studies without a recorded
        origin."""
        return self.asked or not self.why


def without(ids: frozenset[str], id_: str, candidates: Iterable[Candidate]) -> frozenset[str] | None:
    """Return an arm's settings without one setting and those that need it; None if the arm lacks it."""
    return ids - {id_, *(one.id for one in candidates if id_ in one.needs)} if id_ in ids else None


class NotOffered(msgspec.Struct, frozen=True):
    """A setting that a finding or facts suggest but that is not tried, with the reason.

    Args:
        why: ids of the findings, or descriptions of the facts, that suggest the setting.
        forbidden: the setting's effect, if the options do not allow it; None if the reason is another one,
            and in older studies.
    """

    setting: Setting
    reason: str
    why: list[str] = []
    forbidden: Effect | None = None


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One run of one arm. Trials are in order of time.

    Args:
        arm: the arm's settings as written by `arm_key`; "" is the baseline. Older texts take this form.
        block: runs of one block are compared with each other; counted from 1 within a phase; 0 for a pilot.
        value: value of the objective, above 0, lower is better: seconds per sample (or step), seconds, bytes,
            or joules per sample; None if the run gave no value.
        void: disturbances outside the arm's own processes; if there is one, the value is ignored.
        began_s, wall_s: seconds from the first attempt's begin to the run's begin, without pauses; and the
            run's duration.
        run: the run's folder below the study's folder; HOST:FOLDER for a run on another worker of the study.
        lane: the lane of the run, from 1; 0 if the run had the whole machine. All runs of a block are in one
            lane.
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

    def __post_init__(self) -> None:
        force_setattr(self, "arm", canonical(self.arm))

    @property
    def ids(self) -> frozenset[str]:
        """Return the settings of the arm, each as text."""
        return ids_of(self.arm)

    @property
    def was_elsewhere(self) -> bool:
        return ":/" in self.run


class HostBlock(msgspec.Struct, frozen=True, kw_only=True):
    """Runs that one host makes in the given order: a block of all arms of a round, or a pair.

    Args:
        arms: the settings of each arm.
        repeats: how often a disturbed run is repeated; 0 for a pair, which ends with the first disturbed run.
        attempt: number of runs of this block so far that do not count.
    """

    schema: str = "dynotune.block/1"
    phase: Phase
    number: int
    arms: list[list[Setting]]
    repeats: int
    attempt: int = 0


class BlockResult(msgspec.Struct, frozen=True, kw_only=True):
    """Trials of a block that another host ran, and earlier pilots; `out_of_time`: the block is incomplete."""

    schema: str = "dynotune.block-result/1"
    trials: list[Trial] = []
    readback: dict[str, Readback] = {}
    warnings: list[str] = []
    out_of_time: bool = False


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison of two arms, from the blocks of one stage.

    Args:
        arm, against: keys of the two arms, as of a trial.
        num_blocks: number of valid blocks with a value of each arm; within one process, of switches there and
            back.
        speedup: value of `against` over value of `arm`: above 1, `arm` is better. `ci`: two-sided at
            `confidence`.
        p: one-sided p-value of no gain; after Holm's correction if `corrected_over` is above 1.
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

    def __post_init__(self) -> None:
        force_setattr(self, "arm", canonical(self.arm))
        force_setattr(self, "against", canonical(self.against))

    @property
    def ids(self) -> frozenset[str]:
        """Return the settings of `arm`, each as text."""
        return ids_of(self.arm)

    @property
    def against_ids(self) -> frozenset[str]:
        """Return the settings of `against`, each as text."""
        return ids_of(self.against)


class CandidateOutcome(msgspec.Struct, frozen=True):
    """The outcome of a candidate, and the reason in one sentence."""

    kind: OutcomeKind
    reason: str


class Guarded(msgspec.Struct, frozen=True, kw_only=True):
    """Losses, outputs or updates of an arm compared with the baseline's, under one seed.

    Args:
        arm: the key of the arm, as of a trial.
        what: losses, outputs, or updates of parameters by optimizers.
        reference: type of the reference run with which arm and baseline are compared, "float64" or "float32";
            "" if the arm is compared with the baseline, within a fixed tolerance.
        difference: relative. With a reference, the typical error of the arm; otherwise the largest
            difference, in units of the allowed one. `own`: the same for the baseline, without a reference
            between two of its runs, None if not measured; `tolerance`: the allowed difference.
        ratio, ci: the arm's errors over the errors that rounding explains.
        error_ci: of `difference`, at 95%. `baseline_error`: of the unrounded baseline; `no_worse`: whether
            the arm's errors are proved to be no larger than that.
        where: as text, the place of the difference. `module`: the first module that differs; "" if not known.
        num_not_finite: values of the arm that are NaN or infinite although the baseline's are not.
        reason: one sentence with the allowed difference and why.
    """

    arm: str
    what: Literal["losses", "outputs", "updates"]
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

    def __post_init__(self) -> None:
        force_setattr(self, "arm", canonical(self.arm))

    @property
    def ids(self) -> frozenset[str]:
        """Return the settings of the arm, each as text."""
        return ids_of(self.arm)


class Parts(msgspec.Struct, frozen=True, kw_only=True, tag="parts"):
    """Speed-ups of the two parts of a recipe that holds settings that round beside others.

    Args:
        exact: the settings that do not round, against the baseline; `rounding`: the whole recipe against
            `exact`.
    """

    exact: Estimate
    rounding: Estimate


class BreakEven(msgspec.Struct, frozen=True, kw_only=True):
    """Number of steps after which a recipe that starts later but steps faster is ahead; None if it never is.

    Args:
        start_s: seconds from launch to window minus the steady time of the steps before; `baseline_start_s`
            likewise.
    """

    start_s: float
    baseline_start_s: float
    after_steps: int | None


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """Arms that run in blocks together with the baseline. A round's question is fixed before its first run.

    Args:
        kind: `prune` runs `whole` without each of its settings; `alone` runs each setting by itself; `check`
            compares `whole` with one smaller arm.
        arms: by setting's id, the arm without the setting (and settings that need it), or with the setting
            alone.
    """

    kind: Literal["prune", "alone", "check"]
    whole: list[Setting] = []
    arms: dict[str, list[Setting]] = {}
    values: dict[str, list[Setting]] = {}
    first_block: int
    num_blocks: int


class BaseRecipe(msgspec.Struct, frozen=True):
    """A recipe with which a study began: all runs have the recipe's settings. `file`: the recipe's path."""

    file: str
    recipe: Recipe


class Attempt(msgspec.Struct, frozen=True):
    """Begin and end of one attempt (ISO 8601, UTC); `ended_by`: "done", "user", "error"; "" while it runs."""

    began: str
    ended: str = ""
    ended_by: str = ""


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """Document `study.json`.

    Args:
        name: the study's name in a database that workers share; "" without a database.
        run: how every run is made, with the settings of the base recipe, if any. `warmup_steps` and
            `window_steps` are the requested numbers until the first run is planned, and then the planned
            numbers.
        allow: effects that candidates of findings may have, besides exact and sampling: numerics unless the
            study keeps to exact settings.
        whole_epochs: number of epochs in the planned window; 0 if it is not planned as such.
        stage: the current stage of the search; earlier stages are decided.
        selected: the settings that the prune stage left to confirm; None until that stage has ended.
        confirmed: comparison of `selected` with the baseline on fresh pairs; if there was no time for these,
            the last faster one of `within`; None if there is neither.
        wants_time: whether the finished study may prove more in a larger budget.
        settles_in_s: further seconds that should settle what is open, by what blocks, starts and runs took;
            None if that is not known, or if nothing is open.
        parts: what settings of the recipe give with and without those that round; None for a recipe of one
            kind.
        lane_notes: sentences on the lanes in use, and on devices that are left out.
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
    whole_epochs: int = 0
    unit: ValueUnit = ""
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
    parts: Parts | Unknown | None = None
    break_even: BreakEven | None = None
    verdict: str = ""
    finished: bool = False
    wants_time: bool = False
    settles_in_s: float | None = None
    warnings: list[str] = []
    lane_notes: list[str] = []
    attempts: list[Attempt] = []

    @property
    def per(self) -> Unit:
        """Return what a value of the objective is divided by: a sample, or a step where samples are not
        counted.

        Fresh runs fix the unit of a study. Before any, it is that of the blocks within one process.
        """
        if not self.unit:
            return next((blocks.unit for blocks in reversed(self.within) if blocks.pairs), "sample")
        return "step" if self.unit in ("s/step", "J/step") else "sample"

    @property
    def exact(self) -> bool:
        """Return whether the study tries no setting that rounds, unless the user names it."""
        return "numerics" not in self.allow

    @property
    def begun(self) -> str:
        """Describe the baseline, to follow the words "the command"."""
        return "as written" if self.base_recipe is None else "as begun"

    @property
    def findings(self) -> list[Finding]:
        """Return the diagnosis's findings; those with a candidate that ran in blocks have that as their
        test."""
        if isinstance(self.diagnosis, Unknown):
            return []
        proved = [one for one in self.within if one.speedup is not None and not one.only_chooses]

        def tested(finding: Finding) -> Finding:
            own = {one.id for one in self.candidates if finding.id in one.why}
            ran = [one for one in proved if own.issuperset(map(str, one.candidate_settings))]
            best = max(ran, key=lambda one: one.speedup or 0.0, default=None)
            if finding.kind != "speed" or best is None or best.speedup is None:
                return finding
            key = arm_key(best.candidate_settings)
            return replace(
                finding, tested=Switched(arm=key, speedup=best.speedup, ci=best.ci, num_blocks=best.num_pairs)
            )

        return [tested(finding) for finding in self.diagnosis.findings]
