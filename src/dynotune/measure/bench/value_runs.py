"""Run a command with a value in its placeholder, and measure what its limits bound.

Frames are recorded from the start, and timed in a window that begins once all streams give some. Objectives
of a comparison are timed as in one: after a warm-up, for as many steps in each run.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from dynotune import knobs, probe
from dynotune.launch.process import fresh_folder
from dynotune.launch.records import Record, streams
from dynotune.measure.comparison import objective, stream_values, summary
from dynotune.measure.live import readiness, time_limit
from dynotune.measure.live.arm_run import run_settings
from dynotune.measure.live.launch_plan import launch_plan
from dynotune.measure.live.live_run import LiveRun
from dynotune.measure.live.outcome import Outcome, refuse_failed
from dynotune.measure.live.window_plan import WindowPlan, plan_window
from dynotune.schema import untrusted
from dynotune.schema.comparison import Unit
from dynotune.schema.errors import CannotRunHere, CommandFailed, DynotuneError, TooLong
from dynotune.schema.facts import Facts, Unknown
from dynotune.schema.largest import OF_FRAMES, Limit, Measured, Quantity, ValueRun
from dynotune.schema.run import Objective, Plan, RunSpec
from dynotune.schema.serving import Serving
from dynotune.schema.setting import Setting

V = TypeVar("V")

WARMUP_S = 3.0
"""Time after the last stream's first frame, in which queues of the start become empty."""
PATIENCE_S = 5.0
"""A stream that begins later than this after the one before is taken to be missing."""
WRITTEN_S = 0.5
"""Time after the window in which its last frames are written."""
LIMIT_S = 300.0
MOST_FRAMES = 1 << 21


class ValueBench:
    """Runs a command at values, in fresh processes. The caller has reserved the machine.

    Args:
        run: the command, with `{name}` in it. `limits`: what each run measures; `fps`: as `LargestValue`.
        folder: where the runs' folders lie.
    """

    def __init__(
        self,
        run: RunSpec,
        name: str,
        limits: Sequence[Limit],
        *,
        fps: float | None,
        window_s: float,
        folder: Path,
        facts: Facts,
    ) -> None:
        self._run, self._name, self._limits, self._fps = run, name, limits, fps
        self._window_s, self._folder, self._facts = window_s, folder, facts
        # Each value has a window of its own, since its steps take another time.
        self._windows: dict[tuple[Objective, int], tuple[WindowPlan, Unit]] = {}
        self.has_run = False
        """Whether a run at some value gave an answer: from then on, a run that fails shows that its value is
        too large."""

    def run(self, value: int, number: int) -> ValueRun:
        """Run the command at `value`, once for what frames show, and once for each objective.

        A run that takes longer than its time limit leaves the value open: it might have held the limits.

        Raises CannotRunHere, CommandFailed: the command shows nothing, and no run before it did.
        """
        began_s, folder = time.monotonic(), f"{number:03d}-{value}"
        settings = [*self._run.settings, knobs.parse(f"arg.{self._name}={value}")]
        found = ValueRun(value=value, run=folder)
        try:
            if any(limit.quantity in OF_FRAMES for limit in self._limits):
                found = self._frames(found, settings)
            for limit in self._limits:
                if limit.objective is not None and limit.quantity not in {m.quantity for m in found.measured}:
                    one = self._steps(limit.objective, limit.quantity, value, settings, folder)
                    found = msgspec.structs.replace(found, measured=[*found.measured, one])
        except (CannotRunHere, CommandFailed) as error:
            if not self.has_run or isinstance(error, _OfTheProgram):
                raise
            said = {"cut_off" if isinstance(error, TooLong) else "failed": _why(error)}
            found = msgspec.structs.replace(found, measured=[], **said)
        self.has_run = self.has_run or bool(found.measured)
        return msgspec.structs.replace(found, wall_s=time.monotonic() - began_s)

    # Runs that frames judge

    def _frames(self, run: ValueRun, settings: Sequence[Setting]) -> ValueRun:
        fps, limit_s = self._fps or 1.0, self._run.timeout_s or LIMIT_S
        launch = launch_plan(
            self._run,
            settings,
            folder=fresh_folder(self._folder / run.run),
            label=f"the run with {{{self._name}}} = {run.value}",
            purpose="measured",
            facts=self._facts,
            cache_folder=self._folder / "caches",
            plan=Plan(frames=MOST_FRAMES),
            memory=True,
            samples=True,
        )
        with LiveRun(launch, folder=self._folder / run.run, limit_s=limit_s) as live:
            window = _Window(live, run.value, self._window_s, marks=marks_frames(self._run))
            live.until(window)
            outcome = live.end()
            samples = live.samples
        span = (0.0, 0.0)
        if window.begin_s is not None:
            span = window.begin_s, window.begin_s + self._window_s
        seen = streams.seen(outcome.all_records, run.value, span)
        if outcome.run.ended_by != "window" or seen is None or window.begin_s is None:
            if outcome.run.exit_code:
                refuse_failed(outcome, launch, limit_s)
            raise _no_window(outcome, window.begin_s, self._window_s, limit_s)
        _refuse_unseen_latency(seen, outcome, self._limits)
        measured, notes = stream_values.measured(seen, self._limits, run.value, fps, span)
        serving = _with_machine(streams.serving(seen, span), outcome, samples, span, self._facts)
        memory_bytes = serving.device_bytes or serving.host_bytes
        if memory_bytes is not None:
            size = float(memory_bytes)
            measured.append(Measured(quantity="memory", value=size, low=size, high=size))
        wanted = {limit.quantity for limit in self._limits}
        measured = [one for one in measured if one.quantity in wanted]
        return msgspec.structs.replace(run, measured=measured, serving=serving, notes=notes)

    # Objectives of a comparison

    def _steps(
        self, measured: Objective, quantity: Quantity, value: int, settings: Sequence[Setting], folder: str
    ) -> Measured:
        run = msgspec.structs.replace(self._run, objective=measured)
        if (measured, value) not in self._windows:
            pilot = self._launch(run, settings, f"{folder}-{measured}-pilot", None)
            self._windows[measured, value] = plan_window(run, [pilot]), summary.unit([pilot])
        window, unit = self._windows[measured, value]
        outcome = self._launch(run, settings, f"{folder}-{measured}", window)
        shown = objective.value(outcome, measured, unit)
        low, high = objective.interval(outcome, measured, shown)
        if quantity == "throughput":
            shown, low, high = 1 / shown, 1 / high, 1 / low
        return Measured(quantity=quantity, value=shown, low=low, high=high)

    def _launch(
        self, run: RunSpec, settings: Sequence[Setting], name: str, window: WindowPlan | None
    ) -> Outcome:
        return run_settings(
            run,
            settings,
            label="the run",
            cache_folder=self._folder / "caches",
            folder=fresh_folder(self._folder / name),
            purpose="pilot" if window is None else "measured",
            facts=self._facts,
            limit_s=time_limit.limit_s(run, window.run_s if window else None),
            warmup_steps=(window.warmup_steps or None) if window else None,
            window_steps=(window.num_steps or None) if window else None,
            whole_epochs=window.whole_epochs if window else 0,
            enough=readiness.Steadiness(run) if window is None else bool,
        )


class _Window:
    """Test for `until`: the window of all streams is over. `begin_s`: its begin; None until streams gave
    frames."""

    def __init__(self, live: LiveRun, value: int, window_s: float, *, marks: bool) -> None:
        self._live, self._value, self._window_s, self._marks = live, value, window_s, marks
        self.begin_s: float | None = None

    def __call__(self, records: list[Record]) -> bool:
        # Each time, because the first marked frame may come after calls that only warm a model up.
        first_s = streams.begin_s(
            self._live.all_records(), self._value, patience_s=PATIENCE_S, marks=self._marks
        )
        self.begin_s = None if first_s is None else first_s + min(WARMUP_S, self._window_s / 2)
        end_s = math.inf if self.begin_s is None else self.begin_s + self._window_s + WRITTEN_S
        return time.perf_counter() > end_s


def marks_frames(run: RunSpec) -> bool:
    """Return whether a file of the command calls `dynotune.frame_done`."""
    for word in run.command:
        with contextlib.suppress(OSError):
            if word.endswith(".py") and b"frame_done" in untrusted.read(run.cwd / word):
                return True
    return False


def _with_machine(
    serving: Serving,
    outcome: Outcome,
    samples: Sequence[probe.Sample],
    span: tuple[float, float],
    facts: Facts,
) -> Serving:
    """Add what the samples of the machine show of the window."""
    inside = [sample for sample in samples if span[0] <= sample.time_s <= span[1]]
    trees = [(one.time_s, one.tree.cpu_s) for one in inside if not isinstance(one.tree, Unknown)]
    cores = (trees[-1][1] - trees[0][1]) / (trees[-1][0] - trees[0][0]) if len(trees) > 1 else None
    gpus = [gpu for one in inside if not isinstance(one.gpus, Unknown) for gpu in one.gpus]
    shares = [
        gpu.utilisation_percent / 100 for gpu in gpus if not isinstance(gpu.utilisation_percent, Unknown)
    ]
    device_bytes = streams.device_bytes(outcome.all_records)
    return msgspec.structs.replace(
        serving,
        process_cores=streams.busiest_process(outcome.all_records, span),
        cores=cores,
        free_cores=None if cores is None else _free_cores(inside, cores),
        cpu_s=cores / serving.frames_per_s if cores is not None and serving.frames_per_s else None,
        num_cores=float(_known(facts, "host.num_cores", len(probe.host.usable_cpus()))),
        device_share=sum(shares) / len(shares) if shares and device_bytes else None,
        device_bytes=device_bytes,
        host_bytes=None if isinstance(outcome.run.peak_tree_bytes, Unknown) else outcome.run.peak_tree_bytes,
        num_models=streams.num_models(outcome.all_records),
        weights_bytes=streams.weights_bytes(outcome.all_records),
        device_total_bytes=_known(facts, "gpu.memory_bytes", None) if device_bytes else None,
    )


def _free_cores(samples: Sequence[probe.Sample], own: float) -> float | None:
    """Return the cores that other programs left, of those that the kernel lets the program use; None if
    samples do not tell."""
    seen = [(one.time_s, one.cores) for one in samples if not isinstance(one.cores, Unknown)]
    if len(seen) < 2:
        return None
    (first_s, before), (last_s, after) = seen[0], seen[-1]
    others = max(0.0, (after.busy_s - before.busy_s) / (last_s - first_s) - own)
    return max(own, after.num_cpus - others)


def _known(facts: Facts, name: str, default: V) -> V:
    value = facts.get(name, Unknown(""))
    return default if isinstance(value, Unknown) else value  # type: ignore[return-value]


class _OfTheProgram(CannotRunHere):
    """A run showed nothing for a reason that smaller values do not mend."""


def _refuse_unseen_latency(seen: streams.Seen, outcome: Outcome, limits: Sequence[Limit]) -> None:
    """Refuse a deadline where no frame's latency can be seen.

    Raises _OfTheProgram: streams share batches, or calls only start work of a GPU.
    """
    if seen.source == "marks" or not any(limit.quantity == "frame-latency-p99" for limit in limits):
        return
    why = (
        "frames of several streams share a call of the model, so the wait of each is not seen"
        if seen.source == "samples"
        else "a call of the model returns before the GPU has done the work"
        if streams.device_bytes(outcome.all_records) is not None
        else ""
    )
    if why:
        raise _OfTheProgram(
            f"The latency of frames is not known: {why}.",
            hint="Where the program has a frame's result, call dynotune.frame_done(stream, since_s) with the "
            "time.perf_counter() at which the frame came; or leave --deadline out.",
        )


def _no_window(outcome: Outcome, begin_s: float | None, window_s: float, limit_s: float) -> DynotuneError:
    """Explain why there was no whole window of frames."""
    wall_s = outcome.run.wall_s or 0.0
    is_cut_off = outcome.run.ended_by == "timeout"
    ended = "was ended" if is_cut_off else "ended by itself"
    if begin_s is None:
        return (TooLong if is_cut_off else CannotRunHere)(
            f"The command {ended} after {wall_s:.1f} s, and no frame was seen: it called no module of torch, "
            "and marked no frame.",
            hint="Call dynotune.frame_done(stream, since_s) where a frame's result is there. If it was still "
            "starting, give it more time with --timeout.",
        )
    return (TooLong if is_cut_off else _OfTheProgram)(
        f"The command {ended} after {wall_s:.1f} s, before a window of {window_s:g} s was over.",
        hint="Let its sources last longer, for example by reading files again and again; or give a shorter "
        "--window" + (f", or more than {limit_s:.0f} s with --timeout." if is_cut_off else "."),
    )


def _why(error: DynotuneError) -> str:
    last = error.last_lines[-1:] if isinstance(error, CommandFailed) else ()
    return " ".join([error.message, *last])
