"""Choose the settings worth trying on this program and this machine, and give reasons for the others."""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from dynotune import knobs
from dynotune.doctor import Missing, ObservationView, bound_of_compiling, policy
from dynotune.measure.live import refuse_impossible
from dynotune.schema.attribution import Attribution
from dynotune.schema.compilation import Compilation
from dynotune.schema.diagnosis import Diagnosis, Finding, Kind
from dynotune.schema.errors import DynotuneError, UsageError
from dynotune.schema.facts import Facts, Unknown
from dynotune.schema.knob import Effect
from dynotune.schema.observation import Observation
from dynotune.schema.run import Objective, RunSpec
from dynotune.schema.setting import Setting, over
from dynotune.schema.study import Candidate, NotOffered, Study
from dynotune.search import values
from dynotune.search.asked import Asked
from dynotune.search.bounds import NOT_OF_TIME, OF_TIME, bound, is_hidden_by_launches
from dynotune.search.values import Present, has, present

KINDS: dict[Objective, tuple[Kind, ...]] = {
    "throughput": ("speed", "jitter"),
    "latency-p99": ("speed", "jitter"),
    "call-latency-p99": ("speed", "jitter"),
    "energy": ("speed", "jitter"),
    "time-to-first-step": ("start",),
    "memory": ("memory",),
}
"""By objective, the kinds of findings whose candidates can improve the objective."""
MUCH_HOST = 0.25
"""Share of a step that the device waits for the host, from which on replayed graphs save more than fused
kernels."""
_LEFT_OUT = "left out by --exclude"
_BEHIND_LAUNCHES = (
    "it saves time of the device, which waits for launches, and no graphs that end them are tried"
)
_NO_WORKERS = "it needs loader workers, and the loader has none; --try loader.num_workers tries some"
_NOT_ALLOWED: dict[Effect, str] = {
    "numerics": "it rounds numbers differently, and --exact leaves such settings out",
    "semantics": "it may change what the program does; --allow semantics tries it",
    "system": "it is a setting of the system, which only an administrator changes",
}
_ABOUT: dict[Kind, str] = {
    "speed": "the speed of steps",
    "start": "the time to the first step",
    "jitter": "steps that differ",
    "memory": "memory",
    "correctness": "right results",
    "measurement": "measuring rightly",
}
_OUTSIDE_OF_GRAPHS = ("loader.", "transfer.")


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine that candidates have to fit.

    Args:
        env: environment variables that the command inherits; `present`: values of knobs that the program
            already has.
        num_ranks: number of the command's processes on this machine that run steps.
        compiles: whether the program uses torch.compile; then each arm that changes its graphs compiles
            again.
        refused: function that returns why a setting cannot be applied here; "" for a setting that can.
    """

    facts: Facts
    env: Mapping[str, str] = {}
    present: Present = {}
    num_ranks: int = 1
    compiles: bool = False
    refused: Callable[[Setting], str] = lambda setting: ""

    @property
    def num_cores(self) -> int | None:
        return values.num_cores(self.facts, self.num_ranks)


def offered(
    run: RunSpec, study: Study, asked: Asked, observation: Observation, diagnosis: Diagnosis
) -> tuple[list[Candidate], list[NotOffered]]:
    """Return the candidates for an observation that was made with the settings of `run`."""
    base = {one.knob: one.value for one in run.settings}
    named = {knob.removeprefix("env."): str(value) for knob, value in base.items() if knob.startswith("env.")}
    env = {**run.env, **named}
    processes = [] if isinstance(observation.processes, Unknown) else observation.processes
    machine = Machine(
        facts=study.facts,
        env=env,
        present=present(observation, env) | base,
        num_ranks=max(1, len(processes)),
        compiles=any(isinstance(one.compilation, Compilation) for one in processes),
        refused=refusal(run, study.facts),
    )
    compiled = any(model.compiled for process in processes for model in process.models)
    by_facts = [] if compiled else _named_by_facts(observation, machine)
    return candidates(diagnosis, machine, asked, objective=study.run.objective, by_facts=by_facts)


def refusal(run: RunSpec, facts: Facts) -> Callable[[Setting], str]:
    """Return a function that returns why a setting cannot be launched together with the settings of `run`, or
    ""."""

    def refused(setting: Setting) -> str:
        try:
            refuse_impossible(run, over(run.settings, [setting]), facts)
        except DynotuneError as error:
            return error.message
        return ""

    return refused


def _named_by_facts(observation: Observation, machine: Machine) -> list[Candidate]:
    """Suggest torch.compile, whose several small savings can add up to a large gain that no finding names.

    Only if a model runs on a CUDA device, nothing is compiled, and much could be saved.
    """
    seen = ObservationView(observation)
    if machine.present.get(values.COMPILED.knob) != "off" or not seen.uses_cuda or machine.compiles:
        return []
    try:
        bound = bound_of_compiling(seen)
    except Missing:
        return []
    if bound < policy.MUCH_TO_COMPILE:
        return []
    waits = (
        isinstance(observation.attribution, Attribution) and observation.attribution.shares.host >= MUCH_HOST
    )
    return [
        Candidate(
            setting=mode,
            effect=knobs.get(mode.knob).effect,
            why=["kernels.fusable_s", "shares.host"],
            bound=bound,
            bound_by="the time that fusing kernels, and launching fewer of them, could save",
        )
        for mode in ([values.GRAPHS, values.COMPILED] if waits else [values.COMPILED])
    ]


def candidates(
    diagnosis: Diagnosis,
    machine: Machine,
    asked: Asked,
    *,
    objective: Objective = "throughput",
    by_facts: Sequence[Candidate] = (),
) -> tuple[list[Candidate], list[NotOffered]]:
    """List the candidates of findings, the user and facts (`by_facts`) that fit this machine, largest bound
    first.

    Raises UsageError: the user wants a knob tried, but dynotune knows no values to try for it.
    """

    def made(setting: Setting, why: Iterable[str], bounded: tuple[float | Unknown, str]) -> Candidate:
        # A program that compiles would compile again for most arms.
        knob = knobs.get(setting.knob)
        can_switch = not machine.compiles or knob.compiles or knob.id.startswith(_OUTSIDE_OF_GRAPHS)
        return Candidate(
            setting=setting,
            effect=knob.effect,
            why=_unique(why),
            asked=asked.names(setting),
            bound=bounded[0],
            bound_by=bounded[1],
            needs=needs.get(setting, []),
            needs_warm_cache=machine.compiles or knob.compiles,
            in_process=objective == "throughput" and can_switch and not knobs.why_not_switched(setting),
        )

    offered, refused = _of_findings(diagnosis, machine, asked, objective)
    several = [one for knob_id in asked.extra_knobs for one in _fit(knob_id, machine.present, machine)]
    for setting in [*asked.settings, *(one for one in several if not machine.refused(one))]:
        if asked.leaves_out(setting):
            # The user named only the knob of this value; a finding may already have named the value.
            refused.setdefault(setting, NotOffered(setting, _LEFT_OUT))
        elif has(setting, machine.present, machine.env):
            refused[setting] = NotOffered(setting, "the program has it already")
        else:
            offered.setdefault(setting, [])
    needs, lacking = _needs(offered, machine, asked)
    for setting in lacking:
        del offered[setting]
    refused |= lacking
    of_facts = {
        each.setting.knob: (each.bound, each.bound_by)
        for each in by_facts
        if not isinstance(each.bound, Unknown)
    }
    found = []
    for setting, why in offered.items():
        bounded = bound(setting, why, diagnosis, machine.present, objective)
        fact = of_facts.get(setting.knob)
        # Keep the larger bound; an unknown bound counts as infinite.
        if why and fact is not None and not isinstance(bounded[0], Unknown) and fact[0] > bounded[0]:
            bounded = fact
        one = made(setting, [one.id for one in why], bounded)
        predicted = next((finding.predicted[one.id] for finding in why if one.id in finding.predicted), None)
        found.append(msgspec.structs.replace(one, predicted=predicted))
    tried_knobs = {setting.knob for setting in offered}
    for named in by_facts if "speed" in KINDS[objective] else ():
        if named.setting.knob in tried_knobs:
            continue
        if refusal := _refusal(named.setting, "speed", machine, asked, objective):
            refused.setdefault(named.setting, msgspec.structs.replace(refusal, why=named.why))
        else:
            is_of_time = objective in OF_TIME
            bounded = (named.bound, named.bound_by) if is_of_time else (NOT_OF_TIME, "")
            found.append(made(named.setting, named.why, bounded))
    tried = {one.setting for one in found}
    return sorted(found, key=_order), [row for setting, row in refused.items() if setting not in tried]


def _needs(
    offered: Mapping[Setting, Sequence[Finding]], machine: Machine, asked: Asked
) -> tuple[dict[Setting, list[str]], dict[Setting, NotOffered]]:
    """Return the ids of which a setting needs one, by setting, and the settings that lack what they need."""
    makers = [str(one) for one in offered if one.knob == "loader.num_workers" and one.value != 0]
    graphs = [str(one) for one in offered if one.knob == values.GRAPHS.knob]
    needs, lacking = dict[Setting, list[str]](), dict[Setting, NotOffered]()
    for setting, findings in offered.items():
        why = _unique(finding.id for finding in findings)
        if knobs.needs_workers(setting) and machine.present.get("loader.num_workers") == 0:
            met_by, reason = makers, _NO_WORKERS
        elif is_hidden_by_launches(setting, why) and not asked.names(setting):
            # Launches hide the device's work until graphs launch it.
            met_by, reason = graphs, _BEHIND_LAUNCHES
        else:
            continue
        if met_by:
            needs[setting] = met_by
        else:
            lacking[setting] = NotOffered(setting, reason, why)
    return needs, lacking


def refuse_unfit(asked: Asked, machine: Machine) -> list[str]:
    """Refuse the user's settings that cannot be applied here, before anything runs; return cautions about the
    others.

    Raises DynotuneError: as `knobs.check_applies`; UsageError with the reason that `machine.refused` gives.
    """
    for setting in asked.settings:
        knobs.check_applies(setting, machine.facts)
        if reason := machine.refused(setting):
            raise UsageError(f"{setting} cannot be tried: {reason}", hint="Leave it out.")
    for knob_id in asked.extra_knobs:
        several = values.some(knob_id, {}, machine.num_cores)
        if several and not _fit(knob_id, {}, machine):
            knobs.check_applies(several[0], machine.facts)
    return [text for setting in asked.settings if (text := knobs.caution(setting, machine.facts))]


def _of_findings(
    diagnosis: Diagnosis, machine: Machine, asked: Asked, objective: Objective
) -> tuple[dict[Setting, list[Finding]], dict[Setting, NotOffered]]:
    offered: dict[Setting, list[Finding]] = {}
    refused: dict[Setting, NotOffered] = {}
    for finding in diagnosis.findings:
        named = values.around(finding.candidates, machine.present, machine.num_cores)
        if finding.id == "decode-bound":
            named += _fit("decode.backend", {}, machine)
        for setting in [*named, *values.beside_workers(named, machine.present)]:
            refusal = _refusal(setting, finding.kind, machine, asked, objective)
            if refusal is None:
                offered.setdefault(setting, []).append(finding)
            elif setting not in offered:
                before = refused.get(setting)
                why = [*(before.why if before else []), finding.id]
                refused[setting] = msgspec.structs.replace(refusal, why=why)
    return offered, refused


def _fit(knob_id: str, present: Present, machine: Machine) -> list[Setting]:
    """Return the values of a knob that can be applied on this machine."""
    fit = []
    for setting in values.some(knob_id, present, machine.num_cores):
        with contextlib.suppress(DynotuneError):
            knobs.check_applies(setting, machine.facts)
            fit.append(setting)
    return fit


def _refusal(
    setting: Setting, kind: Kind, machine: Machine, asked: Asked, objective: Objective
) -> NotOffered | None:
    """Return why a setting for a finding of `kind` is not tried, user-changeable reasons first; None if it is
    tried."""
    effect = knobs.get(setting.knob).effect
    if asked.leaves_out(setting):
        return NotOffered(setting, _LEFT_OUT)
    if asked.names(setting):
        effect = "exact" if effect != "system" else effect
    if kind not in KINDS[objective]:
        return NotOffered(setting, f"the finding is about {_ABOUT[kind]}, and the objective is {objective}")
    if has(setting, machine.present, machine.env):
        return NotOffered(setting, "the program has it already")
    if effect not in asked.allowed:
        return NotOffered(setting, _NOT_ALLOWED[effect], forbidden=effect)
    if values.beyond_cores(setting, machine.num_cores) and setting not in asked.settings:
        return NotOffered(setting, f"a process may use {machine.num_cores} of the cores here")
    try:
        knobs.check_applies(setting, machine.facts)
    except DynotuneError as error:
        return NotOffered(setting, error.message)
    reason = machine.refused(setting)
    return NotOffered(setting, reason) if reason else None


def _order(candidate: Candidate) -> tuple[float, str, float]:
    """Sort candidates by bound, largest first; candidates without a bound come first, since their gain is
    unlimited."""
    share = 1.0 if isinstance(candidate.bound, Unknown) else candidate.bound
    value = candidate.setting.value
    return -share, candidate.setting.knob, float(value) if isinstance(value, int | float) else 0.0


def _unique(ids: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(ids))
