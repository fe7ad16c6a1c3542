"""Show a comparison's answer in the terminal: verdict, both arms side by side, void pairs and warnings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from dynotune.report import loudness
from dynotune.report.layout import table
from dynotune.schema.comparison import ArmSummary, Comparison, FailedArm, Voided
from dynotune.schema.facts import Unknown
from dynotune.schema.run import Readback
from dynotune.schema.setting import Setting
from dynotune.text import words

VERDICT_STYLES = {
    "faster": "bold green",
    "slower": "bold red",
    "same": "bold cyan",
    "undecided": "bold yellow",
    None: "bold red",
}


NUM_ARMS = 2


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of both arms in words. `num_known`: the number of arms of which the figure is known."""

    label: str
    texts: list[str]
    num_known: int

    @classmethod
    def of(cls, label: str, values: Sequence[float | None], written: Callable[[float | None], str]) -> Figure:
        return cls(label, list(map(written, values)), sum(value is not None for value in values))


def comparison_table(comparison: Comparison) -> RenderableType:
    """Show the answer: verdict, interval, both arms side by side, void pairs, and warnings."""
    parts: list[RenderableType] = [_headline(comparison)]
    if comparison.failed is not None:
        parts.append(_failure(comparison, comparison.failed))
    if comparison.pairs or (comparison.failed is None and comparison.verdict != "same"):
        parts.append(Padding(_arms(comparison), (1, 0)))
    parts.append(_notes(comparison))
    return Group(*parts)


def _headline(comparison: Comparison) -> RenderableType:
    settings, own = words.settings(comparison.candidate_settings, separator=" "), comparison.run.settings
    against = words.settings(own, separator=" ") if own else "the command as it is"
    lines = [
        Text.assemble(("command   ", "dim"), words.command(comparison.run.command)),
        Text.assemble(("compared  ", "dim"), settings, (" against ", "dim"), against),
        Text.assemble(("verdict   ", "dim"), (words.verdict(comparison), VERDICT_STYLES[comparison.verdict])),
    ]
    if comparison.reason:
        lines.append(Text.assemble(("          ", "dim"), comparison.reason))
    return Group(*lines)


def _arms(comparison: Comparison) -> RenderableType:
    ratio = "ratio:" if comparison.run.objective in ("memory", "energy") else "speed-up:"
    rows = table(":", "baseline:text", "candidate:text", ratio, style="bold", gap=3)
    compared = objective(comparison)
    rows.add_row(
        "settings", words.settings(comparison.run.settings), words.settings(comparison.candidate_settings), ""
    )
    rows.add_row(compared.label, *compared.texts, Text(words.speedup(comparison), style="bold"))
    rows.add_row(f"{comparison.confidence:.0%} interval", "", "", words.interval(comparison.ci))
    num = f"{comparison.num_pairs} of at most {comparison.max_pairs}"
    void = f", {len(comparison.voided)} void" if comparison.voided else ""
    rows.add_row("blocks" if comparison.within else "pairs", "", "", num + void)
    for figure in arms(comparison.baseline, comparison.candidate):
        # Within one run both arms have the same start.
        if figure.label != compared.label and not (comparison.within and figure.num_known < NUM_ARMS):
            rows.add_row(figure.label, *figure.texts, "", style="dim")
    return rows


def arms(baseline: ArmSummary, candidate: ArmSummary) -> list[Figure]:
    """Show figures that are not compared; one that is unknown for both arms is left out, except the first
    two."""
    arms = (baseline, candidate)
    always = [
        Figure.of("time to first step", [arm.time_to_first_step_s for arm in arms], words.duration),
        Figure.of("a step, median", [arm.median_step_s for arm in arms], words.duration),
    ]
    others = [
        Figure.of("start, until steady", [arm.start_s for arm in arms], words.duration),
        Figure.of("waits for the loader", [arm.loader_wait_share for arm in arms], words.share),
        Figure.of("memory, peak", [arm.peak_rss_bytes for arm in arms], words.num_bytes),
        Figure.of("device memory, peak", [arm.peak_device_bytes for arm in arms], words.num_bytes),
    ]
    return always + [figure for figure in others if figure.num_known]


def objective(comparison: Comparison) -> Figure:
    """Show the compared objective of both arms."""
    arms, unit = (comparison.baseline, comparison.candidate), comparison.unit
    if comparison.run.objective == "throughput":
        if unit == "sample":
            return Figure.of("samples/s", [arm.samples_per_s for arm in arms], words.rate)
        return Figure.of(
            "steps/s", [1 / arm.s_per_step if arm.s_per_step else None for arm in arms], words.rate
        )
    label = {
        "latency-p99": "a step, 99th percentile",
        "time-to-first-step": "time to first step",
        "memory": "peak of memory",
        "energy": f"energy a {unit}",
    }[comparison.run.objective]
    values = [arm.value for arm in arms]
    return Figure.of(label, values, lambda value: words.value(value, comparison.run.objective, unit))


def _failure(comparison: Comparison, failed: FailedArm) -> RenderableType:
    chosen = comparison.candidate_settings if failed.arm == "candidate" else comparison.run.settings
    arm = f"{failed.arm} ({words.settings(chosen, separator=' ')})"
    what = f"The command failed in the {arm}, {words.ending(failed.exit_code)}."
    lines = [Text(what, style="red"), *(Text(f"  │ {line}", style="dim") for line in failed.last_lines)]
    return Padding(Group(*lines), (1, 0, 0, 0))


def _notes(comparison: Comparison) -> RenderableType:
    lines = [Text(text, style="dim") for text in _measured(comparison)]
    lines += [void_line(f"void: pair {voided.pair}: ", voided) for voided in comparison.voided]
    for change in comparison.set_by:
        removed, kept = f"{change.name} removed", ", held back" if change.kept else ""
        what = removed if change.value is None else str(Setting(f"env.{change.name}", change.value))
        lines.append(
            Text.assemble(("set by the program: ", "dim"), f"{what} in {change.file}:{change.line}{kept}")
        )
    lines += [Text.assemble(("warning: ", "yellow"), text) for text in warnings(comparison)]
    return Group(*lines)


def void_line(label: str, voided: Voided) -> Text:
    """Show a pair that does not count: why, and its ratio if it has values."""
    values = voided.values
    ratio = (
        "" if values is None else f" ({words.times(values.baseline_s / values.candidate_s)}, not evidence)"
    )
    return Text.assemble((label, "yellow"), voided.reason, (ratio, "dim"))


def _measured(comparison: Comparison) -> list[str]:
    lines = [f"A step is: {comparison.step}."] if comparison.step else []
    if comparison.within and comparison.stretch_steps:
        lines.append(
            f"Each block compared both arms within one process: at least {comparison.stretch_steps} steps "
            "with the "
            "candidate and at least as many without, twice each. --in-process never compares fresh processes."
        )
        lines += [
            f"While {one.knob}={one.asked} was on, dynotune read {one.found} ({one.witness})."
            for one in comparison.readback.values()
            if one.ok
        ]
    if comparison.blocks is not None:
        lines.append(words.blocks_before(comparison.blocks))
    shift = comparison.baseline_shift
    if shift is not None and (shift.is_shown or loudness.is_verbose()):
        lines.append(words.baseline_in_blocks(shift))
    if comparison.run.objective == "time-to-first-step":
        lines.append("Each run ended when its first step was known; the device was synchronised at its end.")
    if comparison.run.objective == "latency-p99":
        lines.append("The device was synchronised after every step.")
    if (
        not comparison.within
        and comparison.run.window_steps is not None
        and comparison.run.warmup_steps is not None
    ):
        more = comparison.candidate.window_steps
        # After a wait for the loader, a window may end early, with a whole burst of batches.
        waits = any(arm.loader_wait_share for arm in (comparison.baseline, comparison.candidate))
        most = "at most " if waits else ""
        beside = f", of the far faster candidate up to {more}" if more is not None else ""
        lines.append(
            f"Each run timed {most}{comparison.run.window_steps} steps as a whole{beside}, "
            f"after {comparison.run.warmup_steps} steps of warm-up."
        )
    return lines


def warnings(comparison: Comparison) -> list[str]:
    """Write the comparison's warnings as sentences, and name the settings whose effect was not verified."""
    return [*comparison.warnings, *unverified(comparison.readback.values())]


def unverified(readbacks: Iterable[Readback]) -> list[str]:
    """Write a sentence for each setting that could not be read back from the program (`ok` is None)."""
    said = []
    for one in readbacks:
        if one.ok is None:
            why = one.found.reason if isinstance(one.found, Unknown) else one.detail
            said.append(f"{one.knob}={one.asked} is unverified" + (f": {why.rstrip('.')}." if why else "."))
    return said
