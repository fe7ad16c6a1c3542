"""Show what is known about a machine and its environment in the terminal."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dynotune.report.claims import claim_report
from dynotune.report.layout import fields, finding_lines, spaced
from dynotune.report.loudness import is_brief, most
from dynotune.schema.diagnosis import SEVERITIES, Difference, Examination, NotKnown
from dynotune.schema.facts import Facts, Unknown, Value, known
from dynotune.text import words

MOST_UNKNOWN = 10
MOST_DIFFERENCES, MOST_ONE_SIDED = 25, 12
WIDEST_FACT = 34
MOST_NUMBERS = 4
LONGEST_VALUE = 60
NOTHING = "Nothing here costs speed, as far as a machine alone can tell."
MORE = "--verbose adds what was seen, why it costs, and what no rule could judge."
NEXT = "What a program loses to these: dynotune diagnose -- COMMAND. More on one: dynotune explain ID."


def examination_report(examination: Examination, *, costs: Mapping[str, str]) -> RenderableType:
    """Show the whole examination, worst findings first.

    Args:
        costs: for the id of each finding, the text on why the finding costs time.
    """
    parts: list[RenderableType] = [_head(examination)]
    parts += [finding_lines(finding, costs=costs.get(finding.id, "")) for finding in examination.findings]
    if examination.differences is not None:
        parts.append(_differences(examination.differences))
    if examination.claims:
        rows = ("claim", "instead") if is_brief() else ()
        claims = spaced(claim_report(claim, rows) for claim in examination.claims)
        parts.append(_titled("Does not do what people say", claims))
    if examination.unknown and not is_brief():
        parts.append(_not_known(examination.unknown))
    parts += [Text.assemble(("note: ", "yellow"), words.plain(note)) for note in examination.notes]
    said = [NEXT] * bool(examination.findings) + [MORE] * is_brief()
    parts += [Text(line, style="dim") for line in said]
    return spaced(parts)


def _head(examination: Examination) -> RenderableType:
    facts = examination.facts
    counts = Counter(finding.severity for finding in examination.findings)
    said = ", ".join(f"{counts[severity]} {severity}" for severity in SEVERITIES if counts[severity])
    num = len(examination.findings)
    verdict = f"{num} {'finding' if num == 1 else 'findings'}: {said}." if num else NOTHING
    rows = [("GPU", _gpus(facts)), ("host", _host(facts)), ("python", _python(facts))]
    if not num and examination.claims:
        verdict = (
            "No finding, as far as a machine alone can tell; what is set and does not do what people "
            "say is below."
        )
    return fields(
        [*((name, words.plain(text)) for name, text in rows), ("verdict", Text(verdict, style="bold"))]
    )


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


def _titled(title: str, content: RenderableType) -> RenderableType:
    return Group(Text(title, style="bold"), content)


def _differences(differences: Sequence[Difference]) -> RenderableType:
    """Show differing facts, grouped by why they can matter; facts that only one machine knows are named at
    the end."""
    if not differences:
        return _titled("Against the other machine", Text("No fact that can matter differs."))
    known = [
        each
        for each in differences
        if not isinstance(each.here, Unknown) and not isinstance(each.there, Unknown)
    ]
    shown = known[: most(MOST_DIFFERENCES)]
    width = min(max((len(each.fact) for each in shown), default=0), WIDEST_FACT)
    parts: list[RenderableType] = []
    for matters, group in groupby(shown, key=lambda each: each.matters):
        rows = Table.grid(padding=(0, 2, 0, 0))
        rows.add_column(width=width, overflow="fold")
        rows.add_column(overflow="fold")
        for each in group:
            values = Text.assemble(
                _value(each.fact, each.here), (" here, ", "dim"), _value(each.fact, each.there)
            )
            rows.add_row(words.plain(each.fact, longest=LONGEST_VALUE), values.append(" there", style="dim"))
        parts += [
            Text(words.plain(matters or "no reason is known here why it could matter"), style="dim"),
            Padding(rows, (0, 0, 0, 2)),
        ]
    if len(known) > len(shown):
        parts.append(Text(f"and {len(known) - len(shown)} more; --verbose shows all.", style="dim"))
    one_sided = [words.plain(each.fact, longest=LONGEST_VALUE) for each in differences if each not in known]
    if one_sided:
        more = f" and {len(one_sided) - MOST_ONE_SIDED} more" if len(one_sided) > most(MOST_ONE_SIDED) else ""
        parts.append(
            Text(
                f"Known of one machine alone: {', '.join(one_sided[: most(MOST_ONE_SIDED)])}{more}.",
                style="dim",
            )
        )
    return _titled("Against the other machine", Group(*parts))


def _value(name: str, value: Value | Unknown) -> Text:
    if isinstance(value, Unknown):
        return Text(words.plain(f"unknown: {value.reason}", longest=LONGEST_VALUE), style="dim")
    if value is None:
        return Text("not set" if name.startswith("env.") else "none", style="dim")
    if name.endswith("_bytes") and isinstance(value, int) and not isinstance(value, bool):
        return Text(words.num_bytes(value))
    if isinstance(value, list):
        return Text(words.plain(_run(value), longest=LONGEST_VALUE))
    return Text(words.plain(str(value), longest=LONGEST_VALUE))


def _run(values: Sequence[int | str]) -> str:
    """Write how many numbers there are, then the numbers; if there are many, only the first and the last
    ones."""
    if not all(isinstance(value, int) for value in values):
        return ", ".join(map(str, values))
    listed = f"{values[0]} … {values[-1]}" if len(values) > MOST_NUMBERS else ", ".join(map(str, values))
    return f"{len(values)}: {listed}"


def _not_known(unknown: Sequence[NotKnown]) -> RenderableType:
    """List unknown facts, each with all the rules that need it."""
    by_reason: dict[str, list[str]] = {}
    for each in unknown:
        by_reason.setdefault(words.plain(f"{each.missing}: {each.reason}"), []).append(words.plain(each.id))
    lines = [
        Group(Text(", ".join(ids)), Padding(Text(reason, style="dim"), (0, 0, 0, 2)))
        for reason, ids in list(by_reason.items())[: most(MOST_UNKNOWN)]
    ]
    left = len(by_reason) - most(MOST_UNKNOWN)
    more = [Text(f"and {left} more reasons; --verbose shows all.", style="dim")] if left > 0 else []
    return _titled("Could not be judged", Group(*lines, *more))
