"""Show a diagnosis in the terminal: the verdict, where a step's time goes, findings worst first, and
unknowns."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dynotune.report.bars import OF_A_STEP, Bar, Legend
from dynotune.report.delays import delays_report
from dynotune.report.layout import SEVERITY_STYLES, ShellCommand, fields, table
from dynotune.report.loudness import is_brief, most
from dynotune.report.own_option import comparison
from dynotune.report.tested import briefly, in_words, refuted_report
from dynotune.report.trace_parts import place, prose, title
from dynotune.schema.diagnosis import Diagnosis, Finding, Forecast, NotKnown, UpperBound
from dynotune.schema.facts import NOT_ASKED, Unknown
from dynotune.schema.setting import one_arm
from dynotune.schema.timing import Timing
from dynotune.text import words

NUM_EVIDENCE, LONGEST_EVIDENCE = 4, 200
NUM_UNKNOWN = 10
NUM_IN_BRIEF = 3
"""Number of further findings that a screen has room for, one line each; a remedy and a command take one's
place."""
LONGEST_REASON = 120
UPPER_BOUNDS = "upper bounds that overlap and do not add up; compare proves the gain"
NAMES = {"loader": "the loader alone", "step": "one batch, again and again", "both": "both, as a step is"}
NOTED_SLOWER, LEAST_SHARE = 0.05, 0.01
"""Smallest slowdown and smallest gain to report, as shares of a step: two equal runs may differ by less than
1%."""


def diagnosis_report(diagnosis: Diagnosis) -> RenderableType:
    speed = [finding for finding in diagnosis.findings if finding.kind != "jitter"]
    jitter = [finding for finding in diagnosis.findings if finding.kind == "jitter"]
    parts: list[RenderableType] = [
        _head(diagnosis),
        *_shares(diagnosis),
        *delays_report(diagnosis.delay_tests),
        *_findings("Findings", speed, diagnosis.command),
        *refuted_report(diagnosis.refuted),
        *([] if is_brief() and not jitter else _jitter(diagnosis, jitter)),
        *upper_bounds_report(diagnosis.upper_bounds),
        *forecasts_report(diagnosis.forecasts),
        *([] if is_brief() else _not_known(diagnosis.unknown)),
    ]
    notes = [Text.assemble(("note: ", "yellow"), prose(note)) for note in diagnosis.notes]
    if is_brief():
        notes = [
            *notes[:1],
            Text("--verbose adds evidence, all remedies and notes, and what no rule could judge.", "dim"),
        ]
    parts += [Text("\n").join(notes)] if notes else []
    # No Padding: it fills lines with blanks, and a blank behind a backslash ends the line for a shell.
    pieces = [piece for part in parts for piece in (part, Text())]
    return Group(*pieces[: -1 if is_brief() else None])


def _head(diagnosis: Diagnosis) -> RenderableType:
    command = ("command", words.plain(words.command(diagnosis.command)))
    verdict = ("verdict", prose(diagnosis.verdict, style="bold"))
    if is_brief():
        return fields([verdict, command])
    steps = [("steps", _steps(diagnosis.steps))] if isinstance(diagnosis.steps, Timing) else []
    return fields([command, *steps, ("bottleneck", Text(diagnosis.bottleneck, style="bold")), verdict])


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


def _shares(diagnosis: Diagnosis) -> list[RenderableType]:
    shares, timing = diagnosis.shares, diagnosis.steps
    if isinstance(shares, Unknown) or isinstance(timing, Unknown):
        return []
    busy = diagnosis.busy_share
    detail = words.duration(timing.step_s) + (
        "" if busy is None else f", the device busy for {words.share(busy)}"
    )
    legend = Legend(
        OF_A_STEP, shares, lambda share: words.duration(share * timing.step_s, column=True), busy is not None
    )
    return [Group(title("A step", detail), Bar(OF_A_STEP, shares), legend)]


def _findings(heading: str, findings: Sequence[Finding], command: Sequence[str]) -> list[RenderableType]:
    if not findings:
        return [title(heading, "none: no rule found anything that costs a hundredth of a step")]
    if not is_brief():
        return [Group(title(heading, UPPER_BOUNDS), *(_finding(finding, command) for finding in findings))]
    offers = next((one for one in findings[:NUM_IN_BRIEF] if one.candidates), findings[0])
    few = findings[1 : NUM_IN_BRIEF + (offers is findings[0])]
    rest = [_finding(one, command, only_remedy=True) if one is offers else _title_of(one) for one in few]
    left = len(findings) - 1 - len(rest)
    more = [Text(f"and {left} more", style="dim")] if left else []
    return [Group(title(heading, UPPER_BOUNDS), _finding(findings[0], command), *rest, *more)]


def _finding(finding: Finding, command: Sequence[str], *, only_remedy: bool = False) -> RenderableType:
    """Show a finding: its title, and below it claim, place and remedy, or `only_remedy`; then its
    commands."""
    grid = _title_of(finding)
    grid.add_row("", prose(finding.remedy) if only_remedy else Text("\n").join(_lines(finding)))
    return Group(grid, *_commands(finding, command))


def _title_of(finding: Finding) -> Table:
    """Show severity, id and share of a finding."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, width=8)
    grid.add_column(overflow="fold")
    severity = Text(finding.severity, style=SEVERITY_STYLES[finding.severity])
    grid.add_row(severity, Text.assemble((words.plain(finding.id), "bold"), "  ", (cost(finding), "dim")))
    return grid


def cost(finding: Finding) -> str:
    """Write the most of a step that the finding costs and whether that is tested; else what the finding
    affects."""
    kind = {"speed": "", "jitter": "", "start": "time to the first step"}.get(finding.kind, finding.kind)
    if isinstance(finding.share, Unknown):
        bound = "" if finding.kind not in ("speed", "jitter") else "how much is not known"
    else:
        bound = f"up to {words.fine_share(finding.share)} of a step" if finding.share else ""
    return ", ".join(part for part in (kind, bound, briefly(finding)) if part)


def _lines(finding: Finding) -> list[Text]:
    lines = [prose(finding.claim), *filter(None, [place(finding.where)])]
    lines += [prose(told, style="dim")] if (told := in_words(finding)) and not is_brief() else []
    num_evidence = 0 if is_brief() else most(NUM_EVIDENCE)
    lines += [prose(line, style="dim", longest=LONGEST_EVIDENCE) for line in finding.evidence[:num_evidence]]
    if finding.also and not is_brief():
        lines.append(Text(f"explains {words.plain(', '.join(finding.also))}", style="dim"))
    if finding.remedy:
        lines.append(prose(finding.remedy))
    return lines


def _commands(finding: Finding, command: Sequence[str]) -> list[RenderableType]:
    lines: list[RenderableType] = []
    for setting, found in finding.predicted.items():
        lines.append(Text(f"  {words.plain(setting)}: {words.predicted(found)}", style="dim"))
    if finding.candidates:
        arguments = [*map(str, one_arm(finding.candidates)), "--", *command]
        lines.append(ShellCommand(["dynotune", "compare", *words.shell(arguments)], indent=2))
    if finding.option is not None and (given := comparison(finding.option, command)):
        lines.append(ShellCommand(given, indent=2))
    lines += [
        Text(f"  {words.plain(line, longest=4000)}", style="cyan", overflow="fold")
        for line in finding.commands
    ]
    return lines


def _jitter(diagnosis: Diagnosis, findings: Sequence[Finding]) -> list[RenderableType]:
    if findings:
        return _findings("Jitter", findings, diagnosis.command)
    return [title("Jitter", told)] if (told := jitter_in_words(diagnosis)) else []


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


def _not_known(unknown: Sequence[NotKnown]) -> list[RenderableType]:
    """List rules that could not judge, one line per reason; reasons that affect most rules come first."""
    if not unknown:
        return []
    by_reason: dict[tuple[str, str], list[str]] = {}
    for row in unknown:
        by_reason.setdefault((row.missing, row.reason), []).append(row.id)
    ranked = sorted(by_reason.items(), key=lambda item: -len(item[1]))
    lines = [
        Text.assemble(
            words.plain(f"{missing}: {reason}", longest=LONGEST_REASON), (f"  ({_some(ids)})", "dim")
        )
        for (missing, reason), ids in ranked[: most(NUM_UNKNOWN)]
    ]
    if len(ranked) > most(NUM_UNKNOWN):
        lines.append(Text(f"{len(ranked) - NUM_UNKNOWN} more reasons: --verbose shows all", style="dim"))
    return [
        Group(
            title("Not known", f"{len(unknown)} rule{'s' if len(unknown) > 1 else ''} could not judge"),
            *lines,
        )
    ]


def _some(ids: Sequence[str], most: int = 3) -> str:
    more = f" and {len(ids) - most} more" if len(ids) > most else ""
    return words.plain(", ".join(ids[:most]) + more)


def upper_bounds_report(upper_bounds: Sequence[UpperBound] | Unknown) -> list[RenderableType]:
    """Show a row for each part, and the bounds that follow from the parts; [] if no parts were timed."""
    if isinstance(upper_bounds, Unknown):
        return _unknown("Upper bounds", upper_bounds)
    if not upper_bounds:
        return []
    rows = table(":whole", ":number", ":number", ":dim")
    for row in upper_bounds:
        rate = "" if row.samples_per_s is None else f"{words.rate(row.samples_per_s)} samples/s"
        cache = f"page cache {row.page_cache}" if row.page_cache else ""
        detail = "; ".join(words.plain(text) for text in (cache, *row.notes) if text)
        rows.add_row(NAMES[row.part], words.duration(row.step_s), rate, detail)
    bound = bound_in_words(upper_bounds)
    told = [prose(bound)] if bound else []
    return [Group(title("Upper bounds", "what each part reaches alone, a step"), rows, *told)]


def bound_in_words(upper_bounds: Sequence[UpperBound]) -> str:
    """Say how much a faster loader, or one that works beside the step, can gain at most; "" if no part was
    timed."""
    by_part = {row.part: row.step_s for row in upper_bounds}
    if set(by_part) != set(NAMES) or not by_part["both"]:
        return ""
    loader_s, step_s, both_s = by_part["loader"], by_part["step"], by_part["both"]
    gain = 1 - step_s / both_s
    if gain < LEAST_SHARE:
        return "Without its loader a step takes as long: no setting of the loader can gain anything."
    most = f"No change of the loader can gain more than {words.share(gain)} of a step."
    if (more_s := both_s - loader_s - step_s) >= NOTED_SLOWER * both_s:
        most = f"Taking turns slows them: a step takes {words.duration(more_s)} more than both alone. {most}"
    if loader_s <= step_s:
        return (
            f"{most} It gives batches faster than steps use them: working beside them, it would cost nothing."
        )
    saved = 1 - max(loader_s, step_s) / both_s
    if saved < LEAST_SHARE:
        return f"{most} It sets the pace: it has to give batches faster."
    return f"{most} Working beside the steps as fast as it does alone, it would gain {words.share(saved)}."


def forecasts_report(forecasts: Sequence[Forecast] | Unknown) -> list[RenderableType]:
    """Show a row for each change of the loader with its predicted gain; [] if no prediction was asked for."""
    if isinstance(forecasts, Unknown):
        return _unknown("Forecasts of the loader", forecasts)
    if not forecasts:
        return []
    rows = table("with:text", "loader alone:right", "a step:right", "at least:right", ":text")
    for row in forecasts:
        times = (words.duration(each) for each in (row.loader_s, row.step_s, row.least_step_s))
        rows.add_row(
            row.change, *times, "; ".join(words.plain(each) for each in (row.setting, row.note) if each)
        )
    aside = "predicted, and the least that a step can take; compare proves it"
    return [Group(title("Forecasts of the loader", aside), rows)]


def _unknown(what: str, unknown: Unknown) -> list[RenderableType]:
    if unknown == NOT_ASKED:
        return []
    return [Text(f"{what}: unknown, {words.plain(unknown.reason)}", style="dim")]
