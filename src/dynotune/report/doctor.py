"""Lay out what is known about a machine and its environment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from dynotune.report import machine
from dynotune.report.blocks import (
    Answer,
    Cell,
    Column,
    Fields,
    Findings,
    Lines,
    Note,
    On,
    Piece,
    Report,
    Section,
    Span,
    Table,
    wary,
)
from dynotune.report.diagnosis import item
from dynotune.report.loudness import most
from dynotune.schema.claims import Claim
from dynotune.schema.diagnosis import SEVERITIES, Difference, Examination, NotKnown
from dynotune.schema.facts import Facts, Unknown, Value, known
from dynotune.text import words

MOST_UNKNOWN = 10
MOST_DIFFERENCES, MOST_ONE_SIDED = 25, 12
MOST_NUMBERS = 4
MOST_ON_A_SCREEN = 12
LONGEST_VALUE = 60
NOTHING = "Nothing here costs speed, as far as a machine alone can tell."
ONLY_ADVICE = (
    "No finding, as far as the machine alone shows. Settings that do not do what people say of them "
    "are listed above."
)
MORE = "--verbose adds the evidence, why each finding costs time, and what no rule could judge."
NEXT = (
    "dynotune diagnose -- COMMAND shows what a program loses to these findings. dynotune explain ID "
    "explains one."
)
AGAINST = "Against the other machine"


def layout(examination: Examination, *, costs: Mapping[str, str]) -> Report:
    """Lay out the whole examination, worst findings first.

    Args:
        costs: for the id of each finding, the text on why the finding costs time.
    """
    facts = examination.facts
    items = [item(one, costs=_sentence(costs.get(one.id, ""))) for one in examination.findings]
    findings = [Section("Findings", [Findings(items, screen=MOST_ON_A_SCREEN)])] if items else []
    verdict = _verdict(examination)
    return Report(
        kicker="dynotune doctor",
        answer=Answer(large=_large(examination), line=verdict, sentence=verdict),
        head=[Fields([("GPU", _gpus(facts)), ("host", _host(facts)), ("python", _python(facts))])],
        sections=[
            *findings,
            *_differences(examination.differences),
            *_claims(examination.claims),
            *_not_known(examination.unknown),
            *wary(examination.notes, "note"),
            *([Note(NEXT, tone="dim", on=On.TERMINAL)] if items else []),
            Note(MORE, tone="dim", on=On.SCREEN),
            machine.section(facts),
        ],
        footer="dynotune doctor --json FILE writes all that is shown here.",
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _large(examination: Examination) -> str:
    num = len(examination.findings)
    return f"{num} finding{'' if num == 1 else 's'}" if num else "Nothing found"


def _verdict(examination: Examination) -> str:
    counts = Counter(finding.severity for finding in examination.findings)
    said = ", ".join(f"{counts[severity]} {severity}" for severity in SEVERITIES if counts[severity])
    if said:
        return f"{_large(examination)}: {said}."
    return ONLY_ADVICE if examination.claims else NOTHING


def _gpus(facts: Facts) -> str:
    count = facts.get("gpu.count", Unknown("it was not asked for"))
    if isinstance(count, Unknown):
        return f"unknown: {count.reason}"
    if not isinstance(count, int) or count < 1:
        return "none"
    names = [str(known(facts, f"gpu{at or ''}.name") or "unknown") for at in range(count)]
    told = ", ".join(name if num == 1 else f"{num} × {name}" for name, num in Counter(names).items())
    rest = [
        f"compute capability {capability}" if (capability := known(facts, "gpu.compute_capability")) else "",
        words.num_bytes(memory) if isinstance(memory := known(facts, "gpu.memory_bytes"), int) else "",
        f"driver {driver}" if (driver := known(facts, "gpu.driver")) else "",
    ]
    return ", ".join(filter(None, [told, *rest]))


def _host(facts: Facts) -> str:
    cores, online = known(facts, "host.num_cores"), known(facts, "host.num_logical_cpus")
    of = f" of {online}" if online is not None and online != cores else ""
    container, virtual = known(facts, "host.container"), known(facts, "host.virtual")
    memory = known(facts, "host.memory_bytes")
    rest = [
        f"{known(facts, 'host.cpu') or 'processor unknown'}",
        f"{cores if cores is not None else 'unknown'}{of} processors",
        words.num_bytes(memory) if isinstance(memory, int) else "",
        f"Linux {kernel}" if (kernel := known(facts, "host.kernel")) else "",
        str(container) if container else "",
        f"under {'a hypervisor' if virtual == 'other' else virtual}" if virtual else "",
    ]
    return ", ".join(filter(None, rest))


def _python(facts: Facts) -> str:
    version, executable = known(facts, "python.version"), known(facts, "python.executable")
    if version is None:
        why = facts.get("python.version")
        return f"unknown: {why.reason}" if isinstance(why, Unknown) else "unknown"
    torch = facts.get("torch.version", Unknown("it was not asked for"))
    built = f"torch {torch}" if not isinstance(torch, Unknown) else f"torch unknown: {torch.reason}"
    return f"{version} ({executable}), {built}"


def _claims(claims: Sequence[Claim]) -> list[Piece]:
    if not claims:
        return []
    brief = [[claim.id, claim.instead or claim.fact] for claim in claims]
    screen = Table("", [Column("", "whole"), Column("")], brief, on=On.SCREEN)
    whole = [Section(claim.id, [Fields(_said(claim))], on=On.ALL_OF_IT) for claim in claims]
    return [Section("Does not do what people say", [screen, *whole])]


def _said(claim: Claim) -> list[tuple[str, str]]:
    rows = [
        ("claim", claim.says),
        ("seen here", claim.seen),
        ("what is true", claim.fact),
        ("instead", claim.instead),
        ("source", claim.source),
    ]
    return [row for row in rows if row[1]]


def _differences(differences: Sequence[Difference] | None) -> list[Piece]:
    """Lay out differing facts with why they can matter; facts that only one machine knows are named at the
    end."""
    if differences is None:
        return []
    if not differences:
        return [Section(AGAINST, [Note("No fact that can matter differs.")])]
    both = [
        one for one in differences if not isinstance(one.here, Unknown) and not isinstance(one.there, Unknown)
    ]
    rows: list[list[Cell]] = []
    before = None
    for one in both:
        why = one.matters or "dynotune knows no reason why this could matter"
        fact = words.plain(one.fact, longest=LONGEST_VALUE)
        rows.append(
            [fact, _value(one.fact, one.here), _value(one.fact, one.there), "" if why == before else why]
        )
        before = why
    header = [Column("fact"), Column("here"), Column("there"), Column("why it can matter")]
    blocks: list[Piece] = [Table("", header, rows, most=MOST_DIFFERENCES)] if rows else []
    one_sided = [words.plain(one.fact, longest=LONGEST_VALUE) for one in differences if one not in both]
    if one_sided:
        left = len(one_sided) - most(MOST_ONE_SIDED)
        more = f" and {left} more" if left > 0 else ""
        listed = ", ".join(one_sided[: most(MOST_ONE_SIDED)])
        blocks.append(Note(f"Known of one machine alone: {listed}{more}.", tone="dim"))
    return [Section(AGAINST, blocks)]


def _value(name: str, value: Value | Unknown) -> str | Span:
    if isinstance(value, Unknown):
        return Span(words.plain(f"unknown: {value.reason}", longest=LONGEST_VALUE), "dim")
    if value is None:
        return Span("not set" if name.startswith("env.") else "none", "dim")
    if name.endswith("_bytes") and isinstance(value, int) and not isinstance(value, bool):
        return words.num_bytes(value)
    return words.plain(_run(value) if isinstance(value, list) else str(value), longest=LONGEST_VALUE)


def _run(values: Sequence[int | str]) -> str:
    """Write how many numbers there are, then the numbers; if there are many, only the first and the last
    ones."""
    if not all(isinstance(value, int) for value in values):
        return ", ".join(map(str, values))
    listed = f"{values[0]} … {values[-1]}" if len(values) > MOST_NUMBERS else ", ".join(map(str, values))
    return f"{len(values)}: {listed}"


def _not_known(unknown: Sequence[NotKnown]) -> list[Piece]:
    """Lay out unknown facts, each with all the rules that need it."""
    by_reason: dict[str, list[str]] = {}
    for one in unknown:
        by_reason.setdefault(f"{one.missing}: {one.reason}", []).append(one.id)
    rows: list[list[Cell]] = [
        [Lines((", ".join(ids), Span(reason, "dim")))] for reason, ids in by_reason.items()
    ]
    table = Table("", [Column("")], rows, most=MOST_UNKNOWN)
    return [Section("Could not be judged", [table], on=On.ALL_OF_IT)] if rows else []
