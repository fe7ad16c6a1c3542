"""Lay out a diagnosis: where a step's time goes, findings worst first, what is unknown, and the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dynotune.report import account, delays, machine, own_option
from dynotune.report.blocks import (
    Answer,
    Cell,
    Column,
    CommandLine,
    Commands,
    Fields,
    Findings,
    Item,
    Note,
    On,
    Phrase,
    Piece,
    Report,
    Section,
    Span,
    Table,
    warnings,
)
from dynotune.report.breakdown import Breakdown
from dynotune.report.loudness import is_verbose, most
from dynotune.report.places import place, prose
from dynotune.report.steps import parts_table, stacked
from dynotune.report.tested import briefly, in_words, tested_findings
from dynotune.schema.diagnosis import Diagnosis, Finding, Forecast, NotKnown, UpperBound
from dynotune.schema.facts import NOT_ASKED, Unknown
from dynotune.schema.setting import one_arm
from dynotune.schema.timing import Timing
from dynotune.text import words

NUM_UNKNOWN, MOST_UNKNOWN = 10, 60
MOST_EVIDENCE = 20
LONGEST_REASON = 120
NOTHING = "–"
UPPER_BOUNDS = "upper bounds that overlap and do not add up; compare proves the gain"
REFUTED = "Refuted by delays"
WHY_REFUTED = (
    "a delay of the part that the finding blames did not make a step longer, so its cure saves nothing now"
)
NONE = "none: no rule found anything that costs a hundredth of a step or more"
NAMES = {"loader": "the loader alone", "step": "one batch, again and again", "both": "both, as a step is"}
NOTED_SLOWER, LEAST_SHARE = 0.05, 0.01
"""Smallest slowdown and smallest gain to report, as shares of a step: two equal runs may differ by less than
1%."""


def layout(diagnosis: Diagnosis) -> Report:
    speed = [finding for finding in diagnosis.findings if finding.kind != "jitter"]
    return Report(
        kicker="dynotune diagnose",
        answer=_answer(diagnosis),
        command=words.shell(diagnosis.command),
        head=[Fields(_head(diagnosis), on=On.LONG), Fields(list(_stats(diagnosis)), on=On.PAGE)],
        use=_use(diagnosis),
        sections=[
            *_step(diagnosis),
            *delays.section(diagnosis.delay_tests),
            _findings("Findings", speed, diagnosis.command),
            *_refuted(diagnosis.refuted),
            *_jitter(diagnosis),
            *upper_bounds(diagnosis.upper_bounds),
            *forecasts(diagnosis.forecasts),
            *account.before_steps(diagnosis.account),
            *_not_known(diagnosis.unknown),
            *_notes(diagnosis),
            _repeat(diagnosis),
            machine.section(diagnosis.facts),
        ],
        footer="dynotune diagnose --json FILE writes everything shown here.",
    )


def bottleneck(diagnosis: Diagnosis) -> str:
    """Name the part that limits the command; without a device, its work is compute."""
    is_compute = diagnosis.bottleneck == "device" and diagnosis.busy_share is None
    return "compute" if is_compute else diagnosis.bottleneck


def _answer(diagnosis: Diagnosis) -> Answer:
    verdict = prose(diagnosis.verdict)
    if diagnosis.bottleneck == "none":
        rest = "nothing that could be avoided holds this command up"
        return Answer(large="No bottleneck", rest=rest, sentence=verdict, line=verdict, tone="good")
    large = bottleneck(diagnosis).capitalize()
    return Answer(large=large, rest="limits this command", sentence=verdict, line=verdict)


def _head(diagnosis: Diagnosis) -> list[tuple[str, Phrase]]:
    steps = [("steps", _steps(diagnosis.steps))] if isinstance(diagnosis.steps, Timing) else []
    limits = ("bottleneck", Span(bottleneck(diagnosis), "strong"))
    return [("command", words.command(diagnosis.command)), *steps, limits]


def _steps(timing: Timing) -> str:
    told = [
        f"{timing.num_steps:,} of {words.duration(timing.step_s)}",
        f"median {words.duration(timing.median_step_s)}",
        f"slowest hundredth from {words.duration(timing.p99_step_s)}",
    ]
    if timing.samples_per_s is not None:
        told.append(f"{words.rate(timing.samples_per_s)} samples/s")
    if not timing.steady:
        told.append("not steady")
    return ", ".join(told)


def _stats(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    steps = diagnosis.steps
    if not isinstance(steps, Unknown):
        yield "A step", f"{words.duration(steps.step_s)}, median {words.duration(steps.median_step_s)}"
        yield "Slowest hundredth of steps", f"from {words.duration(steps.p99_step_s)}"
        if steps.samples_per_s is not None:
            yield "Samples/s", words.rate(steps.samples_per_s)
        if diagnosis.busy_share is not None:
            yield "Device busy", words.share(diagnosis.busy_share)
    if name := machine.name_of(diagnosis.facts):
        yield "Machine", name


def _use(diagnosis: Diagnosis) -> list[CommandLine]:
    """Return what to type next: the search for settings, if a finding names one."""
    if not any(finding.candidates for finding in diagnosis.findings):
        return []
    return [
        CommandLine("Find and prove what helps", ["dynotune", "tune", "--", *words.shell(diagnosis.command)])
    ]


def _repeat(diagnosis: Diagnosis) -> Section:
    lines = []
    if diagnosis.findings:
        explain = ["dynotune", "explain", *words.shell([diagnosis.findings[0].id])]
        lines.append(CommandLine("What the first finding means, and when it is wrong", explain))
    again = ["dynotune", "diagnose", "--", *words.shell(diagnosis.command)]
    lines.append(CommandLine("Diagnose again", again))
    return Section("What to do next", [Commands(lines)], on=On.PAGE)


def _step(diagnosis: Diagnosis) -> list[Piece]:
    """Lay out a step as one bar with its parts."""
    side = Breakdown.of("A step", diagnosis)
    if isinstance(side, Unknown):
        return []
    busy = (
        "" if diagnosis.busy_share is None else f", the device busy for {words.share(diagnosis.busy_share)}"
    )
    bar, table = stacked([side]), parts_table([side])
    blocks: list[Piece] = [Section("Where a step goes", [bar, table], on=On.PAGE)]
    if not isinstance(diagnosis.steps, Unknown):
        aside = f"{words.duration(diagnosis.steps.step_s)}{busy}"
        blocks.insert(0, Section("A step", [bar], aside=aside, on=On.TERMINAL))
    return blocks


def _findings(heading: str, findings: Sequence[Finding], command: Sequence[str]) -> Section:
    if not findings:
        return Section(heading, [Note(f"{NONE[0].upper()}{NONE[1:]}.")])
    return Section(heading, [Findings([item(finding, command) for finding in findings])], aside=UPPER_BOUNDS)


def item(finding: Finding, command: Sequence[str] = ("COMMAND",), *, costs: str = "") -> Item:
    """Lay out a finding.

    Args:
        command: the user's command, for the lines to paste.
        costs: why the finding costs time, from its rule; "" to leave it out.
    """
    lines = []
    if finding.candidates:
        arguments = [*words.shell(map(str, one_arm(finding.candidates))), "--", *words.shell(command)]
        lines.append(CommandLine("Prove it", ["dynotune", "compare", *arguments]))
    if finding.option is not None and (own := own_option.comparison(finding.option, command)):
        lines.append(CommandLine("Prove the program's own option", own))
    who = "For an administrator" if finding.needs_root else "In a shell"
    lines += [CommandLine(who, [line]) for line in finding.commands]
    return Item(
        id=finding.id,
        severity=finding.severity,
        cost=cost(finding),
        claim=prose(finding.claim),
        place=place(finding.where),
        test=in_words(finding),
        remedy=prose(finding.remedy),
        predicted=[f"{setting}: {words.predicted(saves)}" for setting, saves in finding.predicted.items()],
        evidence=[prose(line) for line in finding.evidence[: most(MOST_EVIDENCE)]],
        also=finding.also,
        commands=lines,
        about=[("costs", costs)] if costs else [],
    )


def cost(finding: Finding) -> str:
    """Write the most of a step that the finding costs and whether that is tested; else what the finding
    affects."""
    kind = {"speed": "", "jitter": "", "start": "time to the first step"}.get(finding.kind, finding.kind)
    if isinstance(finding.share, Unknown):
        bound = "" if finding.kind not in ("speed", "jitter") else "how much is not known"
    else:
        bound = f"up to {words.fine_share(finding.share)} of a step" if finding.share else ""
    return ", ".join(part for part in (kind, bound, briefly(finding)) if part)


def _refuted(refuted: Sequence[Finding]) -> list[Piece]:
    """Lay out refuted findings with the figures of their tests."""
    if not refuted:
        return []
    on = On.ALL_OF_IT if is_verbose() else On.PAGE
    table = tested_findings(REFUTED, refuted, on=on)
    return [Section(REFUTED, [table], aside=WHY_REFUTED, on=on)]


def _jitter(diagnosis: Diagnosis) -> list[Piece]:
    findings = [finding for finding in diagnosis.findings if finding.kind == "jitter"]
    if findings:
        section = _findings("Jitter", findings, diagnosis.command)
        if len(findings) == len(diagnosis.findings):
            return [section]
        first = findings[0]
        brief = f"Jitter: {first.id}, {cost(first)}. {prose(first.claim)}"
        return [Note(brief, on=On.SCREEN), replace(section, on=On.ALL_OF_IT)]
    said = jitter_in_words(diagnosis)
    return [Section("Jitter", [Note(f"{said[0].upper()}{said[1:]}.")], on=On.ALL_OF_IT)] if said else []


def jitter_in_words(diagnosis: Diagnosis) -> str:
    """Describe how uneven step times are, if no finding describes that; "" if steps are even."""
    steps = diagnosis.steps
    if (
        isinstance(steps, Unknown)
        or not steps.slow
        or any(one.kind == "jitter" for one in diagnosis.findings)
    ):
        return ""
    if all("work" in step.causes for step in steps.slow):
        return ""  # a finding of its own says what they do more
    longest, usual = (
        words.duration(steps.longest_step_s),
        words.duration(steps.typical_step_s or steps.median_step_s),
    )
    return f"the slowest step took {longest}, a typical step {usual}; the cause is not known"


def _not_known(unknown: Sequence[NotKnown]) -> list[Piece]:
    """Lay out rules that could not judge, one line per reason in the terminal; the commonest reasons come
    first."""
    if not unknown:
        return []
    by_reason: dict[tuple[str, str], list[str]] = {}
    for row in unknown:
        by_reason.setdefault((row.missing, row.reason), []).append(row.id)
    ranked = sorted(by_reason.items(), key=lambda pair: -len(pair[1]))
    shown = [
        Note((prose(f"{missing}: {reason}", longest=LONGEST_REASON), Span(f"  ({_some(ids)})", "dim")))
        for (missing, reason), ids in ranked[: most(NUM_UNKNOWN)]
    ]
    if len(ranked) > most(NUM_UNKNOWN):
        shown.append(Note(f"{len(ranked) - NUM_UNKNOWN} more reasons: --verbose shows all", tone="dim"))
    rows = [[f"{row.id}: {row.missing}", prose(row.reason)] for row in unknown[:MOST_UNKNOWN]]
    table = Table("Rules that could not judge", [Column("Not known"), Column("Why")], rows, folded=True)
    detail = f"{len(unknown)} rule{'s' if len(unknown) > 1 else ''} could not judge"
    return [
        Section("Not known", shown, aside=detail, on=On.LONG),
        Section("Not known", [table], aside=f"{detail[0].upper()}{detail[1:]}.", on=On.PAGE),
    ]


def _some(ids: Sequence[str], num: int = 3) -> str:
    more = f" and {len(ids) - num} more" if len(ids) > num else ""
    return ", ".join(ids[:num]) + more


def _notes(diagnosis: Diagnosis) -> list[Piece]:
    notes = warnings(map(prose, diagnosis.notes), "note", on=On.LONG)
    num = len(diagnosis.notes)
    noted = f"{num} note{'' if num == 1 else 's'}, " if num else ""
    more = Note(
        f"--verbose adds {noted}evidence, all remedies, and what no rule could judge.",
        tone="dim",
        on=On.SCREEN,
    )
    on_page = warnings(map(prose, diagnosis.notes), "note")
    return [*notes, more, Section("Be wary of", on_page, on=On.PAGE)]


def upper_bounds(found: Sequence[UpperBound] | Unknown) -> list[Piece]:
    """Lay out a row for each part, and the bounds that follow from the parts; [] if no parts were timed.

    A screen gets the bounds alone.
    """
    if isinstance(found, Unknown):
        return _unknown("Upper bounds", found)
    if not found:
        return []
    rows: list[list[Cell]] = []
    for row in found:
        rate = "" if row.samples_per_s is None else f"{words.rate(row.samples_per_s)} samples/s"
        cache = f"page cache {row.page_cache}" if row.page_cache else ""
        rows.append(
            [
                NAMES[row.part],
                words.duration(row.step_s),
                rate,
                Span("; ".join(filter(None, (cache, *row.notes))), "dim"),
            ]
        )
    header = [Column("Part"), Column("A step", "number"), Column("", "number"), Column("")]
    bound = bound_in_words(found)
    table = Table("", header, rows, cards=False)
    said = [Note(prose(bound))] if bound else []
    aside = "what each part reaches alone, a step"
    return [
        *(replace(note, on=On.SCREEN) for note in said),
        Section("Upper bounds", [table, *said], aside=aside, on=On.ALL_OF_IT),
    ]


def bound_in_words(upper_bounds: Sequence[UpperBound]) -> str:
    """Say how much a faster loader, or one that works beside the step, can gain at most; "" if no part was
    timed."""
    by_part = {row.part: row.step_s for row in upper_bounds}
    if set(by_part) != set(NAMES) or not by_part["both"]:
        return ""
    loader_s, step_s, both_s = by_part["loader"], by_part["step"], by_part["both"]
    gain = 1 - step_s / both_s
    if gain < LEAST_SHARE:
        return "A step takes as long without the loader: no setting of the loader can gain anything."
    most = f"No change of the loader can gain more than {words.share(gain)} of a step."
    if (more_s := both_s - loader_s - step_s) >= NOTED_SLOWER * both_s:
        most = (
            "The loader and the steps slow each other by taking turns: a step takes "
            f"{words.duration(more_s)} more than both alone. {most}"
        )
    if loader_s <= step_s:
        return (
            f"{most} The loader makes batches faster than the steps use them: if it worked beside the "
            "steps, it would cost nothing."
        )
    saved = 1 - max(loader_s, step_s) / both_s
    if saved < LEAST_SHARE:
        return f"{most} The loader sets the pace: it has to make batches faster."
    return (
        f"{most} If the loader worked beside the steps as fast as it does alone, this would gain "
        f"{words.share(saved)}."
    )


def forecasts(found: Sequence[Forecast] | Unknown) -> list[Piece]:
    """Lay out a row for each change of the loader, with its predicted gain; [] if none was asked for.

    A screen gets the best change alone.
    """
    if isinstance(found, Unknown):
        return _unknown("Forecasts of the loader", found)
    if not found:
        return []
    names = ("loader alone", "a step", "at least")
    header = [Column("with"), *(Column(name, "number") for name in names), Column("setting")]
    rows = []
    for row in found:
        times = [words.duration(each) for each in (row.loader_s, row.step_s, row.least_step_s)]
        rows.append([row.change, *times, "; ".join(filter(None, (row.setting, row.note)))])
    aside = "predicted, and the least that a step can take; compare proves it"
    best = min(found, key=lambda row: row.step_s)
    said = f"Predicted with {best.change}: a step takes {words.duration(best.step_s)}; compare proves it."
    return [
        Note(prose(said), on=On.SCREEN),
        Section("Forecasts of the loader", [Table("", header, rows)], aside=aside, on=On.ALL_OF_IT),
    ]


def _unknown(what: str, unknown: Unknown) -> list[Piece]:
    if unknown == NOT_ASKED:
        return []
    return [Note(f"{what}: unknown, {unknown.reason}", tone="dim", on=On.TERMINAL)]
