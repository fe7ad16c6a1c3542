"""Describe the outcome of a run, and explain why a run gave no result."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from dynotune import probe
from dynotune.launch import last_lines
from dynotune.launch.process import has_room, input_is_pipe
from dynotune.launch.records import Record, read_back, why_memory_ran_out
from dynotune.measure.live.launch_plan import LaunchPlan
from dynotune.schema.errors import CannotRunHere, CommandFailed, NoStep, TooLong
from dynotune.schema.events import ProcessExited, TorchImported
from dynotune.schema.facts import Unknown
from dynotune.schema.run import Process, Readback, Run, TimedWindow
from dynotune.schema.setting import Setting
from dynotune.text import words

NUM_LAST_LINES = 12
STEP_FUNCTION = "--step-function module:function (__main__:name for the script's own)"
# EXDEV and EOVERFLOW: an overlay gives these errors for operations that the folder below it allows.
_OF_THE_VIEW = re.compile("|".join(map(os.strerror, (errno.EXDEV, errno.EOVERFLOW))))


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of a run.

    Args:
        records: records of the processes that ran steps, one per rank. `all_records`: records of all
            processes.
        warmup_steps: requested warm-up; None without a planned window.
        outside: the sampler's judgement of the window; None without samples.
        ready_at_exit: whether the awaited line came only when the command ended.
    """

    run: Run
    folder: Path
    launched_s: float
    records: list[Record]
    all_records: list[Record] = []
    warmup_steps: int | None = None
    outside: probe.Interference | None = None
    ready_at_exit: bool = False

    @property
    def windows(self) -> list[TimedWindow]:
        return [process.window for process in self.run.processes if process.window is not None]

    @property
    def num_steps(self) -> int:
        return max((len(record.steps) for record in self.all_records), default=0)

    @property
    def first_step_s(self) -> float | None:
        """Return the slowest rank's time to the first step."""
        found = [process.time_to_first_step_s for process in self.run.processes if process.num_steps]
        return max((time_s for time_s in found if time_s is not None), default=None)

    @property
    def without_steps(self) -> Outcome:
        """Return the outcome without steps, which would fill memory if outcomes of fast programs were
        kept."""
        return msgspec.structs.replace(self, records=[], all_records=[])

    @property
    def rejected(self) -> list[Readback]:
        """List the settings that the live process does not have as requested."""
        return [readback for readback in self.run.readback if readback.ok is False]


def refuse_rejected(outcome: Outcome, where: str) -> None:
    """Refuse a run whose process lacks a setting. `where`: description such as `in the baseline`.

    Raises CannotRunHere: a setting did not take effect.
    """
    if not outcome.rejected:
        return
    first = outcome.rejected[0]
    found = first.found.reason if isinstance(first.found, Unknown) else f"{first.witness} says {first.found}"
    raise CannotRunHere(
        f"{first.knob}={first.asked} did not take effect {where}: {found}."
        + (f" {first.detail}" if first.detail and first.detail != found else ""),
        hint=f"The run is in {outcome.folder}. dynotune knobs {first.knob} says when it applies.",
    )


def readback_of(settings: Sequence[Setting], processes: Sequence[Process]) -> list[Readback]:
    """Return the processes' reports about every setting; a setting without a report is unverified."""
    found = read_back(processes, settings)
    silent = [setting for setting in settings if setting.knob not in {readback.knob for readback in found}]
    nothing = Unknown("no process of the command reported it")
    return found + [Readback(s.knob, str(s.value), nothing, "", None) for s in silent]


def stepping(records: Sequence[Record]) -> list[Record]:
    """Return the records of the processes whose steps count: all ranks, or the process that ran the most
    steps."""
    with_steps = [record for record in records if record.steps]
    ranks = [record for record in with_steps if record.rank is not None]
    if len(ranks) > 1:
        return ranks
    return [max(with_steps, key=lambda record: len(record.steps))] if with_steps else []


def refuse_failed(outcome: Outcome, launch: LaunchPlan, limit_s: float) -> None:
    """Raise an error if a run gave nothing: a full disk, a failed command, a timeout, or no step at all.

    Raises CommandFailed, CannotRunHere: the run gave nothing, for one of the named reasons.
    """
    run, lines = outcome.run, last_lines(outcome.folder, NUM_LAST_LINES)
    if not has_room(outcome.folder):
        raise CannotRunHere(
            f"There is no room left in {outcome.folder}: what the command printed and recorded there is "
            "cut off.",
            hint="Free some space there, or name another folder with --run-dir.",
        )
    if run.ended_by == "command" and run.exit_code:
        failed = f"The command failed in {launch.label} {words.ending(run.exit_code)}."
        if run.sandbox == "overlay" and (line := next(filter(_OF_THE_VIEW.search, lines), "")):
            raise CannotRunHere(
                f"{failed} It ran in a copy-on-write view of its folder, which may be why: {line}",
                hint="Run it with --no-sandbox; it then works in your folder itself. Without privileges, "
                "the view "
                "cannot rename a folder that was there before.",
            )
        raise CommandFailed(
            f"{failed} {_of_memory(outcome, lines)}".rstrip(),
            hint=f"All that it printed is in {outcome.folder}.",
            command_exit_code=run.exit_code,
            last_lines=lines,
        )
    if run.ended_by == "timeout" and outcome.num_steps:
        raise TooLong(
            f"{launch.label.capitalize()} took longer than {limit_s:.0f} s; it had made "
            f"{outcome.num_steps} steps.",
            hint="Give more with --timeout, or fewer steps with --warmup and --steps.",
        )
    if outcome.num_steps == 0:
        raise _no_step(outcome, launch, limit_s, lines)


def _of_memory(outcome: Outcome, lines: Sequence[str]) -> str:
    """Report that device memory ran out, and the use of the memory; "" if the run failed for another
    cause."""
    if said := next((one.out_of_memory for one in outcome.run.processes if one.out_of_memory), ""):
        return said
    steps = outcome.records[0].steps if outcome.records else []
    return why_memory_ran_out(lines, batch=steps[-1].num_samples if steps else None)


def _no_step(
    outcome: Outcome, launch: LaunchPlan, limit_s: float, lines: tuple[str, ...]
) -> NoStep | TooLong:
    """Explain why there was no step, as far as the records show."""
    run, records = outcome.run, outcome.all_records
    after = (
        f"in {limit_s:.0f} s" if run.ended_by == "timeout" else f"before it ended, after {run.wall_s:.1f} s"
    )
    num_events = max(
        (event.num_events for record in records for event in record.all(ProcessExited)), default=0
    )
    hint = "Is it the right command?"
    if not records:
        why = f"No Python of this command began a record {after}."
        hint = (
            "It is not Python, clears its environment, or starts Python with -I, -E or -S: our agent is "
            "off then."
        )
    elif not any(record.last(TorchImported) for record in records):
        why = f"The command did not import torch {after}."
    elif named := launch.plan.step_function:
        why = f"The command made no step {after}: no call of {named} (--step-function) returned."
        hint = (
            "Name module:function as the program imports it (__main__ for its script), or call "
            "dynotune.step()."
        )
    else:
        found = f"{num_events} events, but no cycle among them" if num_events else "no batch, call or update"
        why = f"The command made no step that dynotune can see {after}; seen: {found}."
        hint = (
            f"Name the function whose return ends a step with {STEP_FUNCTION}, or call dynotune.step() there."
        )
    why += f" It printed last: {lines[-1]}" if lines else ""
    hint += (
        " Its standard input has to be a file (< FILE): a pipe is not handed on." if input_is_pipe() else ""
    )
    hint += (
        " If it was still starting, give it more time with --timeout." if run.ended_by == "timeout" else ""
    )
    hint += " If it starts the work in the background and ends, give the command that does the work."
    return (TooLong if run.ended_by == "timeout" else NoStep)(why, hint=hint)
