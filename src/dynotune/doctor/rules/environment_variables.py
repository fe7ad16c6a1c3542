"""Environment variables that slow a program down: debugging aids that were left on, caches that are off, and
others."""

from dynotune.doctor import machine
from dynotune.doctor.bounds import severity_of
from dynotune.doctor.declaration import Judgement, Judgements, Rule, machine_rule
from dynotune.doctor.machine import part_of_step, severity_on_gpu
from dynotune.doctor.observation_view import ObservationView, or_else
from dynotune.doctor.rules.startup import what_it_saves
from dynotune.doctor.variables import TABLES, Variable
from dynotune.schema.compilation import Compilation
from dynotune.schema.diagnosis import Severity
from dynotune.schema.facts import Unknown
from dynotune.schema.observation import FRESH_CACHES
from dynotune.schema.trace_summary import Place
from dynotune.text import words

FLAGS = TABLES["debugs"]
COMPILE_CACHES = TABLES["forgets"]
CHECKS_COLLECTIVES = FLAGS[0].does


def _rule_of(variable: Variable) -> Rule:
    """Make the rule that fires if the variable has such a value, and offers to unset it."""

    @machine_rule(family="environment_variables", id=variable.id)
    def judge(view: ObservationView) -> Judgements:
        if variable.is_set(view):
            yield Judgement(
                kind=variable.kind,
                share=part_of_step(view, *variable.bound) if variable.kind == "speed" else None,
                severity=None if variable.bound else severity_on_gpu(view, variable.severity),
                otherwise=variable.severity,
                variables=[variable.name],
                evidence=list(variable.evidence),
                remedy=variable.remedy,
            )

    return judge


@machine_rule(
    family="environment_variables", candidates=machine.unset(*dict.fromkeys(flag.name for flag in FLAGS))
)
def debug_flags_left_on(view: ObservationView) -> Judgements:
    flags = [flag for flag in FLAGS if flag.is_set(view)]
    anomaly = view.fact_or_none("live.anomaly_mode") is True
    if not flags and not anomaly:
        return
    names = list(dict.fromkeys(flag.name for flag in flags))
    weights = [severity_on_gpu(view, flag.severity) if flag.on_gpu else flag.severity for flag in flags]
    severity: Severity = "high" if anomaly else "medium" if "medium" in weights else "low"
    share = _bound_of_anomaly_mode(view) if anomaly else machine.NOT_MEASURED
    if not anomaly and [flag.does for flag in flags] == [CHECKS_COLLECTIVES]:
        share = part_of_step(view, "communication") or share
    evidence = ["torch.autograd.set_detect_anomaly(True) is in force"] if anomaly else []
    evidence += [f"{view.variable_evidence(flag.name)[0]}: {flag.does}" for flag in flags]
    remedies = ["Call torch.autograd.set_detect_anomaly(False) once the fault is found."] if anomaly else []
    remedies += ["Unset the variables."] if names else []
    place = view.fact_or_none("live.anomaly_place") if anomaly else None
    yield Judgement(
        severity=severity_of(share, severity),
        claim="Anomaly detection of autograd is on."
        if anomaly
        else f"{machine.in_words(names)} {'are' if len(names) > 1 else 'is'} set, for debugging.",
        share=share,
        evidence=evidence,
        where=Place(place) if isinstance(place, str) and place else view.place_of_variable(*names),
        candidates=machine.unset(*names),
        remedy=" ".join(remedies),
    )


def _bound_of_anomaly_mode(view: ObservationView) -> float | Unknown:
    """Return a bound of the cost of stack traces and NaN checks: the host's share, and pointwise and reducing
    kernels.

    On the CPU, each operator records its stack within its own time, so there is no bound.
    """
    parts = machine.shares(view)
    if parts is None:
        return machine.NOT_MEASURED
    if not view.uses_cuda:
        return Unknown("on the CPU it is part of every operator's own time")
    return or_else(
        lambda: min(parts.host + view.kernel_share("elementwise", "reduction"), 1.0), machine.NOT_MEASURED
    )


@machine_rule(
    family="environment_variables", candidates=machine.unset(*(each.name for each in COMPILE_CACHES))
)
def caches_disabled(view: ObservationView) -> Judgements:
    names = [each.name for each in COMPILE_CACHES if each.is_set(view)]
    live = [
        text
        for name, off, text in (
            ("live.inductor_caches_disabled", True, "torch.compiler.config.force_disable_caches is true"),
            ("live.inductor_fx_graph_cache", False, "torch._inductor.config.fx_graph_cache is false"),
        )
        if view.fact_or_none(name) is off
    ]
    fresh = str(view.fact_or_none(FRESH_CACHES) or "").split()
    if not names and not live and not fresh:
        return
    off = (
        "The caches of torch.compile are off"
        if names or live
        else "Each start has a compile cache of its own"
    )
    unused = not isinstance(view.observation.processes, Unknown) and not _compiles(view)
    unused = unused or view.number_or_none("start.num_graphs") == 0
    yield Judgement(
        severity="low" if unused else "medium",
        claim=f"{off}: each start compiles everything again.",
        variables=[*names, *fresh],
        evidence=[*live, *what_it_saves(view)],
        candidates=machine.unset(*names),
        remedy="Leave the caches on. TORCHINDUCTOR_CACHE_DIR can name a folder that lasts."
        if names or live
        else f"Set {fresh[0]} to a folder that lasts, not to a new one at each start.",
    )


def _compiles(view: ObservationView) -> bool:
    """Tell whether torch.compile made a graph."""
    compilation = view.process.compilation if view.observation.processes else None
    return isinstance(compilation, Compilation) and compilation.num_graphs > 0


@machine_rule(family="environment_variables")
def bytecode_not_kept(view: ObservationView) -> Judgements:
    if view.truth("torch.bytecode"):
        return
    name = "PYTHONDONTWRITEBYTECODE"
    refused = bool(view.variable(name))
    if not refused and view.truth("torch.bytecode_writable"):
        return
    folder, python = view.fact_or_none("torch.folder"), view.fact_or_none("python.executable")
    packages = str(folder).rpartition("/")[0] if folder else ""
    way = f"Unset {name}" if refused else "Let PYTHONPYCACHEPREFIX name a folder that lasts"
    compiles = (
        [words.command([str(python), "-m", "compileall", "-q", packages])] if packages and python else []
    )
    yield Judgement(
        severity="low" if machine.is_watched(view) else "medium",
        evidence=view.variable_evidence(name)
        if refused
        else ["there are none, and their folder is not writable"],
        where=view.place_of_variable(name),
        remedy=f"{way}, or compile the modules once, for instance while an image is built.",
        commands=compiles,
    )


VARIABLES = tuple(map(_rule_of, TABLES["slows"]))
