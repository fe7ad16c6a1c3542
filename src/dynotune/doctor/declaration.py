"""A rule: its declaration, the function that judges, and the findings made of its judgements."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from dynotune.doctor import policy
from dynotune.doctor.bounds import place_of
from dynotune.doctor.families import Family
from dynotune.doctor.finding_texts import FindingTexts, Umbrella, texts_beside
from dynotune.doctor.machine import NOT_MEASURED, severity_on_gpu, unset
from dynotune.doctor.observation_view import ObservationView, evidence_of
from dynotune.schema.attribution import LostTime
from dynotune.schema.delays import DelayedPart
from dynotune.schema.diagnosis import Finding, Kind, Severity
from dynotune.schema.facts import Unknown
from dynotune.schema.model import Model
from dynotune.schema.program_options import OptionMeaning
from dynotune.schema.setting import Setting
from dynotune.schema.trace_summary import Place

Scope = Literal["machine", "program"]
COST_OF_KIND: dict[Kind, float | Unknown] = {
    "speed": NOT_MEASURED,
    "start": 0.0,
    "jitter": 0.0,
    "measurement": 0.0,
    "memory": Unknown("it costs memory"),
    "correctness": Unknown("it costs right results, not time"),
}
"""The share of a step for a judgement without one, by kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The conclusion of a rule, from which `Rule` makes a finding.

    Args:
        claim: as in `Finding`; "" for the rule's title.
        evidence, where: as in `Finding`.
        kind, remedy, commands: as in `Finding`; None or empty for those in the finding's texts.
        share: as in `Finding`; None for the usual cost of the rule's kind.
        severity: None for the severity of the share.
        otherwise: severity if the share is unknown; low for a rule on the machine where there is no GPU.
            Without this and `severity`, a share below `policy.LEAST_SHARE` makes no finding.
        candidates: None for the settings that the rule declares together with a value.
        losses: causes in the trace. They come first in the evidence, and the largest gives the place.
        model: module whose call is the place, unless the losses give a place.
        variables: environment variables. They come first in the evidence, with who set them, which gives the
            place. Unsetting them is the candidate unless there are others.
    """

    claim: str = ""
    share: float | Unknown | None = None
    severity: Severity | None = None
    otherwise: Severity | None = None
    kind: Kind | None = None
    evidence: Sequence[str] = ()
    where: Place | None = None
    candidates: Sequence[Setting] | None = None
    remedy: str = ""
    commands: Sequence[str] = ()
    losses: Sequence[LostTime] = ()
    model: Model | None = None
    variables: Sequence[str] = ()


Judgements = Iterator[Judgement]
Judge = Callable[[ObservationView], Iterable[Judgement]]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. Call it with a view to get its findings.

    Args:
        family: the subject of the rule; diagnoses and the order of findings depend on it.
        scope: `machine` for a rule that needs only facts; `program` for a rule that needs a watched command.
        sees, costs, wrong_when, example: prose for readers: what the rule looks at, what the finding costs,
            when it is wrong, and what shows it.
        offers: default candidates of a finding; a knob without a value if the finding computes the value.
        explains: ids of more general findings whose cause this rule names. A kind of time in place of an id
            stands for all findings that only sum up such time (`umbrella`).
        umbrella: kinds of time of which this rule's finding is only the sum. A finding that explains such a
            kind also explains this finding.
        delayed: parts of a step whose delay tests the finding; None for those of the family. whole_part,
            own_option: see `FindingTexts`.
        kind, remedy, commands: defaults for findings that name none of their own.
        needs_root: whether commands of the rule's findings need the rights of an administrator.
        sysctls: settings of the kernel, by name, that are set by the first of the commands.
        own_option: as in `FindingTexts`.
        on_cuda: whether the rule applies only to programs that use a CUDA device.
    """

    id: str
    family: Family
    scope: Scope
    title: str
    sees: str
    costs: str
    wrong_when: str
    example: str
    offers: tuple[Setting | str, ...]
    explains: tuple[str, ...]
    umbrella: tuple[Umbrella, ...]
    delayed: tuple[DelayedPart, ...] | None
    whole_part: bool
    kind: Kind
    remedy: str
    commands: tuple[str, ...]
    needs_root: bool
    sysctls: Mapping[str, str]
    own_option: OptionMeaning | None
    on_cuda: bool
    judge: Judge

    @property
    def candidates(self) -> tuple[str, ...]:
        """List the settings that the rule may offer: `knob=value`, or `knob` alone if the rule computes the
        value."""
        return tuple(map(str, self.offers))

    def generals(self, rules: Mapping[str, "Rule"]) -> list[str]:
        """Return the ids of the more general findings whose cause this rule names, in the order of
        `explains`."""
        named = (
            id_
            for word in self.explains
            for id_, general in rules.items()
            if id_ != self.id and (id_ == word or word in general.umbrella)
        )
        return list(dict.fromkeys(named))

    def declares(self, setting: Setting) -> bool:
        """Tell whether `setting` is among the declared candidates."""
        return setting.knob in self.offers or setting in self.offers

    def __call__(self, view: ObservationView) -> Iterator[Finding]:
        """Judge. Raises Missing: a fact that the rule needs is not known."""
        if not self.on_cuda or view.uses_cuda:
            yield from filter(None, (self._finding(view, each) for each in self.judge(view)))

    def _finding(self, view: ObservationView, judged: Judgement) -> Finding | None:
        """Return the finding, or None if it costs too little to be one."""
        kind = judged.kind or self.kind
        share = COST_OF_KIND[kind] if judged.share is None else judged.share
        severity = judged.severity
        if severity is None and isinstance(share, Unknown):
            assert judged.otherwise is not None, f"{self.id} says nothing of the severity of an unknown share"
            severity = (
                severity_on_gpu(view, judged.otherwise) if self.scope == "machine" else judged.otherwise
            )
        elif severity is None and not isinstance(share, Unknown):
            if judged.otherwise is None and share < policy.LEAST_SHARE:
                return None
            severity = policy.severity(share)
        assert severity is not None
        where, candidates = judged.where, judged.candidates
        if where is None:
            where = (
                view.place_of_variable(*judged.variables)
                if judged.variables
                else place_of(judged.losses, judged.model)
            )
        if candidates is None:
            own = [each for each in self.offers if isinstance(each, Setting)]
            candidates = unset(*judged.variables) if judged.variables else own
        commands = list(judged.commands or self.commands)
        return Finding(
            id=self.id,
            severity=severity,
            kind=kind,
            claim=judged.claim or self.title,
            share=share,
            evidence=[
                *view.variable_evidence(*judged.variables),
                *evidence_of(judged.losses),
                *judged.evidence,
            ],
            where=where,
            candidates=list(candidates),
            remedy=judged.remedy or self.remedy,
            commands=commands,
            needs_root=self.needs_root and bool(commands),
            sysctls=dict(self.sysctls),
        )


def rule(
    *,
    family: Family,
    id: str = "",
    candidates: Iterable[Setting | str] = (),
    scope: Scope = "program",
    on_cuda: bool = False,
    **told: Any,
) -> Callable[[Judge], Rule]:
    """Make a `Rule` of the decorated function, with the texts that stand beside the function's module.

    Args:
        family: the subject of the rule, which does not depend on the module of the function.
        id: for a rule made from a row of a table; otherwise the function's name with dashes.
        candidates: settings besides those of the texts, if a table of the program names them.
        told: texts that several rules share, in place of those beside the module.
    """

    def made(judge: Judge) -> Rule:
        name = id or judge.__name__.replace("_", "-")
        texts = {} if "title" in told else texts_beside(judge.__module__)
        own = msgspec.structs.asdict(texts[name]) if name in texts else {}
        prose = msgspec.convert(own | told, FindingTexts)
        offers = (
            *(each if isinstance(each, str) else Setting(*each) for each in prose.candidates),
            *candidates,
        )
        sets = [f"sudo sysctl {name}={value}" for name, value in prose.sysctls.items()]
        return Rule(
            id=name,
            family=family,
            scope=scope,
            title=prose.title,
            sees=prose.sees,
            costs=prose.costs,
            wrong_when=prose.wrong_when,
            example=prose.example,
            offers=offers,
            explains=prose.explains,
            umbrella=prose.umbrella,
            delayed=prose.delayed,
            whole_part=prose.whole_part,
            kind=prose.kind,
            remedy=prose.remedy,
            commands=(*sets, *prose.commands),
            needs_root=prose.needs_root or bool(sets),
            sysctls=prose.sysctls,
            own_option=prose.own_option,
            on_cuda=on_cuda,
            judge=judge,
        )

    return made


machine_rule = functools.partial(rule, scope="machine")
cuda_rule = functools.partial(rule, on_cuda=True)
