"""Show a comparison in the terminal: a line per pair during the run, and a table at the end."""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.status import Status
from rich.text import Text

from dynotune.report import loudness
from dynotune.report.layout import table
from dynotune.schema import redaction
from dynotune.schema.comparison import ArmName, ArmSummary, Comparison, FailedArm, Pair, Voided
from dynotune.schema.facts import Unknown
from dynotune.schema.run import Objective, Readback
from dynotune.schema.setting import Setting
from dynotune.text import words

VERDICT_STYLES = {
    "faster": "bold green",
    "slower": "bold red",
    "same": "bold cyan",
    "undecided": "bold yellow",
    None: "bold red",
}

LOG_EVERY_S = 60.0


def comparison_table(comparison: Comparison) -> RenderableType:
    """Show the answer: verdict, interval, both arms side by side, void pairs, and warnings."""
    parts: list[RenderableType] = [_headline(comparison)]
    if comparison.failed is not None:
        parts.append(_failure(comparison, comparison.failed))
    if comparison.pairs or (comparison.failed is None and comparison.verdict != "same"):
        parts.append(Padding(_arms(comparison), (1, 0)))
    parts.append(_notes(comparison))
    return Group(*parts)


class Progress:
    """Show the progress of a running comparison on the given console.

    On a terminal the line of the run in progress is redrawn in place; elsewhere it is written once a minute. As a
    context manager: on exit, also after an error, the line in progress is erased.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status: Status | None = None
        # FORCE_COLOR, as in a log or a notebook, makes no terminal of what cannot be drawn over.
        self._is_log = not (console.is_terminal and (not console.stderr or console.file.isatty()))
        self._what, self._began_s, self._told_s = "", monotonic(), monotonic()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        self._clear()

    def say(self, text: str) -> None:
        """Write a line that stays on the screen."""
        self._console.print(Text(redaction.redacted(text), style="dim"), soft_wrap=self._is_log)

    def warn(self, text: str) -> None:
        """Write a warning that stays on the screen."""
        self._console.print(Text.assemble(("warning: ", "yellow"), redaction.redacted(text)), soft_wrap=self._is_log)

    def running(self, what: str) -> None:
        """Show what is in progress, in place of the previous text; in a log once a minute."""
        self._what = redaction.redacted(what)
        if self._is_log and monotonic() - self._told_s >= LOG_EVERY_S:
            self._told_s = monotonic()
            self._console.print(self, soft_wrap=self._is_log)
        elif not self._is_log and self._status is None:
            self._status = self._console.status(self, spinner_style="dim")
            self._status.start()

    def __rich__(self) -> Text:
        """Return the line in progress: what runs now, and for how long all has run. A terminal draws it anew."""
        minutes, seconds = divmod(int(monotonic() - self._began_s), 60)
        return Text(f"{self._what} · {minutes}:{seconds:02}", style="dim")

    def running_arm(self, arm: ArmName, *, pair: int, max_pairs: int, so_far: str = "") -> None:
        """Show that one run of a pair is in progress. `pair` counts from 1."""
        self.running(f"pair {pair} of at most {max_pairs}: {arm}" + (f"; {so_far}" if so_far else ""))

    def finished(
        self,
        pair: Pair,
        *,
        number: int,
        max_pairs: int,
        unit: str = "sample",
        objective: Objective = "throughput",
        what: str = "pair",
    ) -> None:
        """Show that a pair, or a block, is complete. Its ratio is a single observation, not yet an answer."""
        self._clear()
        self._console.print(
            Text.assemble(
                (f"{what} {number:>2}/{max_pairs}  ", "dim"),
                f"baseline {words.value(pair.baseline_s, objective, unit)}, ",
                f"candidate {words.value(pair.candidate_s, objective, unit)}  ",
                (words.times(pair.baseline_s / pair.candidate_s), "bold"),
            ),
            soft_wrap=self._is_log,
        )

    def voided(self, voided: Voided) -> None:
        """Show that a pair does not count, and why."""
        self._clear()
        self._console.print(_void(f"pair {voided.pair:>2} void: ", voided), soft_wrap=self._is_log)

    def _clear(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None


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
    rows.add_row("settings", words.settings(comparison.run.settings), words.settings(comparison.candidate_settings), "")
    rows.add_row(compared[0], *compared[1], Text(words.speedup(comparison), style="bold"))
    rows.add_row(f"{comparison.confidence:.0%} interval", "", "", words.interval(comparison.ci))
    num = f"{comparison.num_pairs} of at most {comparison.max_pairs}"
    void = f", {len(comparison.voided)} void" if comparison.voided else ""
    rows.add_row("blocks" if comparison.within else "pairs", "", "", num + void)
    for label, text in arms(comparison.baseline, comparison.candidate):
        # Within one run both arms have the same start.
        if label != compared[0] and not (comparison.within and words.UNKNOWN in text):
            rows.add_row(label, *text, "", style="dim")
    return rows


def arms(baseline: ArmSummary, candidate: ArmSummary) -> list[tuple[str, list[str]]]:
    """Show figures that are not compared; a row that is unknown for both arms is left out, except the first two."""
    arms = (baseline, candidate)
    rows = [
        ("time to first step", [words.duration(arm.time_to_first_step_s) for arm in arms]),
        ("a step, median", [words.duration(arm.median_step_s) for arm in arms]),
        ("start, until steady", [words.duration(arm.start_s) for arm in arms]),
        ("waits for the loader", [words.share(arm.loader_wait_share) for arm in arms]),
        ("memory, peak", [words.num_bytes(arm.peak_rss_bytes) for arm in arms]),
        ("device memory, peak", [words.num_bytes(arm.peak_device_bytes) for arm in arms]),
    ]
    return rows[:2] + [entry for entry in rows[2:] if set(entry[1]) != {words.UNKNOWN}]


def objective(comparison: Comparison) -> tuple[str, list[str]]:
    """Show the compared objective of both arms."""
    arms, unit = (comparison.baseline, comparison.candidate), comparison.unit
    if comparison.run.objective == "throughput":
        if unit == "sample":
            return "samples/s", [words.rate(arm.samples_per_s) for arm in arms]
        return "steps/s", [words.rate(1 / arm.s_per_step if arm.s_per_step else None) for arm in arms]
    label = {
        "latency-p99": "a step, 99th percentile",
        "time-to-first-step": "time to first step",
        "memory": "peak of memory",
        "energy": f"energy a {unit}",
    }[comparison.run.objective]
    return label, [words.value(arm.value, comparison.run.objective, unit) for arm in arms]


def _failure(comparison: Comparison, failed: FailedArm) -> RenderableType:
    chosen = comparison.candidate_settings if failed.arm == "candidate" else comparison.run.settings
    arm = f"{failed.arm} ({words.settings(chosen, separator=' ')})"
    what = f"The command failed in the {arm}, {words.ending(failed.exit_code)}."
    lines = [Text(what, style="red"), *(Text(f"  │ {line}", style="dim") for line in failed.last_lines)]
    return Padding(Group(*lines), (1, 0, 0, 0))


def _notes(comparison: Comparison) -> RenderableType:
    lines = [Text(text, style="dim") for text in _measured(comparison)]
    lines += [_void(f"void: pair {voided.pair}: ", voided) for voided in comparison.voided]
    for change in comparison.set_by:
        removed, kept = f"{change.name} removed", ", held back" if change.kept else ""
        what = removed if change.value is None else str(Setting(f"env.{change.name}", change.value))
        lines.append(Text.assemble(("set by the program: ", "dim"), f"{what} in {change.file}:{change.line}{kept}"))
    lines += [Text.assemble(("warning: ", "yellow"), text) for text in warnings(comparison)]
    return Group(*lines)


def _void(label: str, voided: Voided) -> Text:
    values = voided.values
    ratio = "" if values is None else f" ({words.times(values.baseline_s / values.candidate_s)}, not evidence)"
    return Text.assemble((label, "yellow"), voided.reason, (ratio, "dim"))


def _measured(comparison: Comparison) -> list[str]:
    lines = [f"A step is: {comparison.step}."] if comparison.step else []
    if comparison.within and comparison.stretch_steps:
        lines.append(
            f"Each block compared both arms within one process: at least {comparison.stretch_steps} steps with the "
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
        lines.append(
            f"In the blocks, a step of the baseline took {words.baseline_shift(shift)} as long as in the plain window "
            "before anything was recorded or switched."
        )
    if comparison.run.objective == "time-to-first-step":
        lines.append("Each run ended when its first step was known; the device was synchronised at its end.")
    if comparison.run.objective == "latency-p99":
        lines.append("The device was synchronised after every step.")
    if not comparison.within and comparison.run.window_steps is not None and comparison.run.warmup_steps is not None:
        more = comparison.candidate.window_steps
        # After a wait for the loader, a window may end early, with a whole burst of batches.
        most = "at most " * any(arm.loader_wait_share for arm in (comparison.baseline, comparison.candidate))
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
