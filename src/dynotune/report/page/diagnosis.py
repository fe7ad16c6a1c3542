"""The view of a diagnosis."""

from collections.abc import Iterator
from dataclasses import dataclass

from dynotune.report import own_option, tested
from dynotune.report.breakdown import Breakdown
from dynotune.report.diagnosis import NAMES, bound_in_words, cost, jitter_in_words
from dynotune.report.page import plots
from dynotune.report.page.table import MOST_UNKNOWN, NOTHING, Table, facts, step, tested_findings, with_rows
from dynotune.report.page.view import Lines, View, drawn, title_of
from dynotune.report.study.header import Headline, machine
from dynotune.report.trace_parts import place, prose
from dynotune.schema.diagnosis import Diagnosis, Finding, UpperBound
from dynotune.schema.facts import Unknown
from dynotune.schema.setting import one_arm
from dynotune.text import words

MOST_FINDINGS = 40
MOST_EVIDENCE = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingView:
    """View of a finding on a page; "" and [] if the finding says nothing.

    Args:
        cost: what the finding costs at most.
        where: the place in the program.
        tested: the figures of the finding's test.
        also: ids of the findings that this one explains.
        prove, shell: the command that proves the finding's settings, and commands for an administrator.
        predicted: what a replay of the trace predicts for each setting.
    """

    id: str
    severity: str
    cost: str
    claim: str
    where: str
    tested: str
    remedy: str
    also: str
    prove: Lines
    shell: Lines
    predicted: list[str]
    evidence: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisView(View):
    """View of the page of a diagnosis.

    Args:
        num_more: number of findings that are left out.
        jitter: how uneven steps are; "" if they are even, or a finding says it.
        bound: what a change of the loader can gain at most; "" if that is not known.
        num_unknown: number of rules that could not judge.
    """

    findings: list[FindingView]
    num_more: int
    jitter: str
    bound: str
    num_unknown: int


def view_of(diagnosis: Diagnosis) -> DiagnosisView:
    whole, none = Breakdown.of("A step", diagnosis), diagnosis.bottleneck == "none"
    sides = [] if isinstance(whole, Unknown) else [whole]
    rest = "nothing that could be avoided holds this command up" if none else "limits this command"
    large = "No bottleneck" if none else diagnosis.bottleneck.capitalize()
    bounds = [] if isinstance(diagnosis.upper_bounds, Unknown) else diagnosis.upper_bounds
    findings = [_finding(finding, diagnosis.command) for finding in diagnosis.findings[:MOST_FINDINGS]]
    return DiagnosisView(
        title=title_of(diagnosis.command),
        command=words.shell(diagnosis.command),
        headline=Headline(large, rest, prose(diagnosis.verdict).plain, not none),
        stats=list(_stats(diagnosis)),
        figures=drawn({"step": plots.shares(sides, "Where a step goes")}),
        tables=with_rows(
            {
                "forecasts": _forecasts(diagnosis),
                "step": step(sides),
                "bounds": _bounds(bounds),
                "refuted": tested_findings(tested.REFUTED, diagnosis.refuted),
                "not_known": _not_known(diagnosis),
                "facts": facts(diagnosis.facts),
            }
        ),
        commands=_commands(diagnosis),
        warnings=[prose(note).plain for note in diagnosis.notes],
        findings=findings,
        num_more=len(diagnosis.findings) - len(findings),
        jitter=jitter_in_words(diagnosis),
        bound=bound_in_words(bounds),
        num_unknown=len(diagnosis.unknown),
    )


def _stats(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    steps = diagnosis.steps
    if not isinstance(steps, Unknown):
        yield "A step", f"{words.duration(steps.step_s)}, median {words.duration(steps.median_step_s)}"
        yield "Slowest hundredth of steps", f"from {words.duration(steps.p99_step_s)}"
        if steps.samples_per_s is not None:
            yield "Samples/s", words.rate(steps.samples_per_s)
        if diagnosis.busy_share is not None:
            yield "Device busy", words.share(diagnosis.busy_share)
    if name := machine(diagnosis.facts):
        yield "Machine", name


def _bounds(bounds: list[UpperBound]) -> Table:
    rows = [[NAMES[row.part], words.duration(row.step_s, column=True)] for row in bounds]
    return Table("What each part reaches alone", "Part:text | A step:number", rows, cards=False)


def _forecasts(diagnosis: Diagnosis) -> Table:
    header = "With:text | The loader alone:number | A step:number | At least:number | Setting:text"
    rows = [
        [
            row.change,
            words.duration(row.loader_s),
            words.duration(row.step_s),
            words.duration(row.least_step_s),
            row.setting or row.note or NOTHING,
        ]
        for row in ([] if isinstance(diagnosis.forecasts, Unknown) else diagnosis.forecasts)
    ]
    return Table("Forecasts of the loader: predicted, not proved", header, rows)


def _not_known(diagnosis: Diagnosis) -> Table:
    rows = [[f"{row.id}: {row.missing}", row.reason] for row in diagnosis.unknown[:MOST_UNKNOWN]]
    return Table("Rules that could not judge", "Not known:text | Why:text", rows)


def _finding(finding: Finding, command: list[str]) -> FindingView:
    settings = words.shell(map(str, one_arm(finding.candidates)))
    prove = (
        [("Prove it", ["dynotune", "compare", *settings, "--", *words.shell(command)])] if settings else []
    )
    own = own_option.comparison(finding.option, command) if finding.option is not None else []
    return FindingView(
        id=finding.id,
        severity=finding.severity,
        cost=cost(finding),
        claim=prose(finding.claim).plain,
        where=place(finding.where).plain,
        tested=tested.in_words(finding),
        remedy=prose(finding.remedy).plain,
        also=", ".join(finding.also),
        prove=[*prove, *([("Prove the program's own option", own)] if own else [])],
        shell=[("For an administrator", [line]) for line in finding.commands],
        predicted=[f"{setting}: {words.predicted(saves)}" for setting, saves in finding.predicted.items()],
        evidence=[prose(line).plain for line in finding.evidence[:MOST_EVIDENCE]],
    )


def _commands(diagnosis: Diagnosis) -> Lines:
    command, commands = words.shell(diagnosis.command), []
    if any(finding.candidates for finding in diagnosis.findings):
        commands.append(("Find and prove what helps", ["dynotune", "tune", "--", *command]))
    if diagnosis.findings:
        explain = ["dynotune", "explain", *words.shell([diagnosis.findings[0].id])]
        commands.append(("What the first finding means, and when it is wrong", explain))
    commands.append(("Diagnose again", ["dynotune", "diagnose", "--", *command]))
    return commands
