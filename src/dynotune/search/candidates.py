"""Which settings are worth a try on this program and this machine, and why others are not offered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from dynotune import knobs
from dynotune.schema.diagnosis import Diagnosis, Finding, Kind
from dynotune.schema.errors import DynotuneError, UsageError
from dynotune.schema.facts import Facts, Unknown
from dynotune.schema.knob import Effect
from dynotune.schema.run import Objective
from dynotune.schema.setting import Setting
from dynotune.schema.study import Candidate, NotOffered
from dynotune.search import needs, values
from dynotune.search.asked import Asked
from dynotune.search.bounds import bound, bound_by_facts, larger
from dynotune.search.from_facts import Named
from dynotune.search.present import Present, has

KINDS: dict[Objective, tuple[Kind, ...]] = {
    "throughput": ("speed", "jitter"),
    "latency-p99": ("speed", "jitter"),
    "energy": ("speed", "jitter"),
    "time-to-first-step": ("start",),
    "memory": ("memory",),
}
"""Findings whose candidates can serve an objective."""
_LEFT_OUT = "left out by --exclude"
_NO_WORKERS = "it needs loading processes, and the loader has none; --try loader.num_workers tries some"
_NOT_ALLOWED: dict[Effect, str] = {
    "numerics": "it may change results in their last digits; --allow numerics tries it",
    "semantics": "it may change what the program does; --allow semantics tries it",
    "system": "it is of the system, which only an administrator changes",
}


_OUTSIDE_OF_GRAPHS = ("loader.", "transfer.")


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What candidates have to fit.

    Args:
        env: what the command inherits.
        present: what the program has already.
        num_ranks: processes of this machine that make steps.
        compiles: the program uses torch.compile; so whatever changes its graphs is compiled anew, once an arm.
        refused: of a setting, why it cannot be applied here; "" where it can.
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

    def can_switch(self, setting: Setting) -> bool:
        """Whether arms with it can take turns within one run; a compiled program would compile anew for most."""
        return not self.compiles or setting.knob == "compile.mode" or setting.knob.startswith(_OUTSIDE_OF_GRAPHS)


def candidates(
    diagnosis: Diagnosis,
    machine: Machine,
    asked: Asked,
    *,
    objective: Objective = "throughput",
    by_facts: Sequence[Named] = (),
) -> tuple[list[Candidate], list[NotOffered]]:
    """What the findings name, what the user asks for, and what facts name of other knobs, fit for this machine; largest
    bound first.

    Raises:
        UsageError: a knob is to be tried, and nothing says which values of it.
    """
    offered, refused = _of_findings(diagnosis, machine, asked, objective)
    for setting in _of_user(machine, asked):
        if asked.leaves_out(setting):
            # A value that its knob's name alone brought; a finding may have named it before.
            refused.setdefault(setting, NotOffered(setting, _LEFT_OUT))
        elif has(setting, machine.present, machine.env):
            refused[setting] = NotOffered(setting, "the program has it already")
        else:
            offered.setdefault(setting, [])
    makers = [str(setting) for setting in offered if setting.knob == "loader.num_workers" and setting.value != 0]
    if machine.present.get("loader.num_workers") == 0 and not makers:
        for setting in [setting for setting in offered if needs.workers(setting)]:
            refused[setting] = NotOffered(setting, _NO_WORKERS, _unique(one.id for one in offered.pop(setting)))
    of_facts = {named.setting.knob: named for named in by_facts}
    found = []
    for setting, why in offered.items():
        bounded = bound(setting, why, diagnosis, machine.present, objective)
        if why and (fact := of_facts.get(setting.knob)) is not None:
            bounded = larger(bounded, bound_by_facts(fact, objective))
        one = _candidate(setting, [one.id for one in why], bounded)
        predicted = next((finding.predicted[one.id] for finding in why if one.id in finding.predicted), None)
        found.append(msgspec.structs.replace(one, predicted=predicted))
    for named in _unnamed(by_facts, offered, objective):
        if reason := _why_not(named.setting, "speed", machine, asked, objective):
            refused.setdefault(named.setting, NotOffered(named.setting, reason, named.why))
        else:
            found.append(_candidate(named.setting, named.why, bound_by_facts(named, objective)))
    found = [_on_machine(one, machine, objective, makers) for one in found]
    found = [msgspec.structs.replace(one, asked=_is_asked_for(one.setting, asked)) for one in found]
    tried = {one.setting for one in found}
    return sorted(found, key=_order), [row for setting, row in refused.items() if setting not in tried]


def refuse_unfit(asked: Asked, machine: Machine) -> list[str]:
    """Refuse what the user named and cannot be applied here, before anything runs; cautions about the rest.

    Raises:
        DynotuneError: as `knobs.check_applies`, and UsageError where `machine.refused` gives a reason.
    """
    for setting in asked.settings:
        knobs.check_applies(setting, machine.facts)
        if reason := machine.refused(setting):
            raise UsageError(f"{setting} cannot be tried: {reason}", hint="Leave it out.")
    for knob_id in asked.extra_knobs:
        for setting in values.some(knob_id, {}, machine.num_cores):
            knobs.check_applies(setting, machine.facts)
    return [text for setting in asked.settings if (text := knobs.caution(setting, machine.facts))]


def _of_findings(
    diagnosis: Diagnosis, machine: Machine, asked: Asked, objective: Objective
) -> tuple[dict[Setting, list[Finding]], dict[Setting, NotOffered]]:
    offered: dict[Setting, list[Finding]] = {}
    refused: dict[Setting, NotOffered] = {}
    for finding in diagnosis.findings:
        named = values.around(finding.candidates, machine.present, machine.num_cores)
        for setting in [*named, *values.beside_workers(named, machine.present)]:
            reason = _why_not(setting, finding.kind, machine, asked, objective)
            if not reason:
                offered.setdefault(setting, []).append(finding)
            elif setting not in offered:
                before = refused.get(setting)
                refused[setting] = NotOffered(setting, reason, [*(before.why if before else []), finding.id])
    return offered, refused


def _of_user(machine: Machine, asked: Asked) -> list[Setting]:
    several = [
        setting
        for knob_id in asked.extra_knobs
        for setting in values.some(knob_id, machine.present, machine.num_cores)
        if not machine.refused(setting)
    ]
    return [*asked.settings, *several]


def _is_asked_for(setting: Setting, asked: Asked) -> bool:
    return setting in asked.settings or setting.knob in asked.extra_knobs


def _unnamed(by_facts: Sequence[Named], offered: Iterable[Setting], objective: Objective) -> list[Named]:
    """Of what facts name for the speed of steps, knobs of which no other value is tried."""
    tried = {setting.knob for setting in offered}
    return [one for one in by_facts if "speed" in KINDS[objective] and one.setting.knob not in tried]


def _why_not(setting: Setting, kind: Kind, machine: Machine, asked: Asked, objective: Objective) -> str:
    """Why a setting is not tried that is named for its effect on `kind`; "" where it is. First what the user can
    change, and said so.
    """
    effect = knobs.get(setting.knob).effect
    if asked.leaves_out(setting):
        return _LEFT_OUT
    if _is_asked_for(setting, asked):
        effect = "exact" if effect != "system" else effect
    if kind not in KINDS[objective]:
        return f"the finding is about {_ABOUT[kind]}, and the objective is {objective}"
    if has(setting, machine.present, machine.env):
        return "the program has it already"
    if effect not in asked.allowed:
        return _NOT_ALLOWED[effect]
    if values.beyond_cores(setting, machine.num_cores) and setting not in asked.settings:
        return f"a process may use {machine.num_cores} of the cores here"
    try:
        knobs.check_applies(setting, machine.facts)
    except DynotuneError as error:
        return error.message
    return machine.refused(setting)


_ABOUT: dict[Kind, str] = {
    "speed": "the speed of steps",
    "start": "the time to the first step",
    "jitter": "steps that differ",
    "memory": "memory",
    "correctness": "right results",
    "measurement": "measuring rightly",
}


def _candidate(setting: Setting, why: Iterable[str], bounded: tuple[float | Unknown, str]) -> Candidate:
    return Candidate(
        setting=setting,
        effect=knobs.get(setting.knob).effect,
        why=_unique(why),
        bound=bounded[0],
        bound_by=bounded[1],
    )


def _on_machine(one: Candidate, machine: Machine, objective: Objective, makers: list[str]) -> Candidate:
    """
    Args:
        makers: ids of candidates that give a loader workers.
    """
    setting = one.setting
    return msgspec.structs.replace(
        one,
        needs=makers if needs.workers(setting) and machine.present.get("loader.num_workers") == 0 else [],
        needs_warm_cache=machine.compiles or setting.knob == "compile.mode",
        in_process=objective == "throughput" and machine.can_switch(setting) and not knobs.why_not_switched(setting),
    )


def _order(candidate: Candidate) -> tuple[float, str, float]:
    """What nothing bounds comes first: it may be anything."""
    share = 1.0 if isinstance(candidate.bound, Unknown) else candidate.bound
    value = candidate.setting.value
    return -share, candidate.setting.knob, float(value) if isinstance(value, int | float) else 0.0


def _unique(ids: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(ids))
