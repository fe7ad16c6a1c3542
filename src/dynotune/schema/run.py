"""One launch of a command: its request, and its results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from dynotune.schema import redaction
from dynotune.schema.facts import Unknown
from dynotune.schema.setting import Setting
from dynotune.schema.task import PageCache, PlannedSetting, Task

Purpose = Literal["run", "pilot", "measured", "live", "results"]
Objective = Literal["throughput", "latency-p99", "call-latency-p99", "time-to-first-step", "memory", "energy"]
PERCENTILES: tuple[Objective, ...] = ("latency-p99", "call-latency-p99")
"""Objectives that are a percentile of single steps or calls."""
Phase = Literal["training", "inference"]
Caches = Literal["warm", "cold"]
EndedBy = Literal["command", "window", "timeout", "user"]

LIMIT_S = 900.0
"""Time limit (s) of one run, as long as neither the user nor an earlier run gives one."""


class PretendedGpu(msgspec.Struct, frozen=True, kw_only=True):
    """A pretended GPU: the program seems to find it, but it has no memory and does no work."""

    name: str
    total_bytes: int
    compute_capability: tuple[int, int]
    num_multiprocessors: int


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Description of a command's run, part of requests and documents; `--resume` reads it.

    Args:
        command: words of the command, which may contain placeholders such as `{run_dir}`.
        cwd: the command's working directory, absolute.
        env: environment variables that the command inherits; `recorded` drops them, since they may contain
            secrets.
        step_function: `module:function` whose return ends a step, or `dynotune.step`; None to detect steps.
        phase: the phase whose steps count; None for training, if the command trains.
        ready_pattern: regular expression for the output line that ends a start; None: the first step ends a
            start.
        seed: seed for random, numpy, torch and the order of runs; None keeps the program's own seeds.
        page_cache: "cold" drops the data files' pages before the loader is timed alone.
        sandbox: whether to work on a copy-on-write view of `cwd`, if the kernel allows it.
        run_to_end: whether the command runs to its own end instead of being ended after the timed window.
        nice: niceness of the command, 0 to 19; 19 yields to everything else.
        offline_trackers: whether experiment trackers keep what a run logs in files instead of sending it.
        timeout_s: time limit of one run in seconds; None to derive it from earlier runs, else `LIMIT_S`.
        lock: whether to wait for another dynotune that measures on the same cores or GPU.
        pretend: the GPU that the program finds in place of the machine's.
        lanes: number of concurrent runs, each with its own GPU and cores; 0 for the number of idle GPUs.
    """

    command: list[str]
    cwd: Path
    env: dict[str, str] = {}
    base: Path
    settings: list[Setting] = []
    step_function: str | None = None
    phase: Phase | None = None
    ready_pattern: str | None = None
    seed: int | None = None
    warmup_steps: int | None = None
    window_steps: int | None = None
    objective: Objective = "throughput"
    caches: Caches = "warm"
    page_cache: PageCache = "warm"
    sandbox: bool = True
    nice: int = 0
    offline_trackers: bool = False
    run_to_end: bool = False
    timeout_s: float | None = None
    lock: bool = True
    pretend: PretendedGpu | None = None
    lanes: Annotated[int, msgspec.Meta(ge=0)] = 1

    @property
    def recorded(self) -> RunSpec:
        """Return the spec as documents store it: without the environment."""
        return msgspec.structs.replace(self, env={})

    def resumed(self, now: RunSpec) -> RunSpec:
        """Return the stored spec with environment, folder and lock replaced by the values in `now`."""
        return msgspec.structs.replace(self, env=now.env, base=now.base, lock=now.lock)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Instructions for the agent: document `plan.json` in the run folder.

    Args:
        seed: seed that random, numpy and torch get before the program draws random numbers; None sets no
            seed.
        note_events: record the steps in which code was compiled or memory was allocated.
        observe: record the state of the process, together with its window (event `state`).
        sync_steps: wait for the device at the end of each step, in order to time single steps.
        startup: record the parts of the start (events `span`).
        account: record these parts in the whole run, and stacks of the main thread (events `stacks`) until
            the run's first task.
        frames: most frames of streams to record (events `frames`); an observed run records calls of models
            up to its first task, since recording them costs time.
        pretend: as `RunSpec.pretend`.
        watched: whether the run is watched: a full record then continues in further files, of which the
            newest are kept, and the agent reports the signal on which the program writes its threads' stacks.
        other_arm: settings of another arm, which the agent looks for and does not set.
        secret_hints, secret_patterns: hints and patterns of secrets, which the record leaves out: see
            `schema.redaction`.
    """

    schema: str = "dynotune.plan/2"
    settings: list[PlannedSetting] = []
    other_arm: list[PlannedSetting] = []
    tasks: list[Task] = []
    live: bool = False
    step_function: str | None = None
    phase: Phase | None = None
    seed: int | None = None
    note_events: bool = False
    observe: bool = False
    sync_steps: bool = False
    startup: bool = False
    account: bool = False
    frames: int = 0
    pretend: PretendedGpu | None = None
    watched: bool = False
    secret_hints: tuple[str, ...] = redaction.HINTS
    secret_patterns: tuple[str, ...] = redaction.PATTERNS


class Readback(msgspec.Struct, frozen=True):
    """The live process's report on whether a setting took effect.

    Args:
        asked: the requested value, as text.
        found: the actual value, as text; Unknown if the value cannot be read.
        witness: as text, where the value was read.
        ok: whether the actual value equals the requested value; None if not verified.
        detail: why the setting could not be applied, or which code changed it; may be empty.
    """

    knob: str
    asked: str
    found: str | Unknown
    witness: str
    ok: bool | None
    detail: str = ""


class EnvironmentChange(msgspec.Struct, frozen=True):
    """A change that the program was about to make to a watched environment variable.

    Args:
        value: the new value; None if the variable was removed.
        file, line, function: the code that makes the change: the innermost frame outside the standard
            library's os.
        kept: whether the change was prevented because a setting keeps this variable.
        fresh: whether the value is a folder that this run made for itself: temporary, or named after its
            process.
    """

    name: str
    value: str | None
    file: str
    line: int
    function: str
    kept: bool = False
    fresh: bool = False


class TimedWindow(msgspec.Struct, frozen=True, kw_only=True):
    """The timed window of one process, with the device synchronised at both ends.

    Args:
        first_step: index of the window's first step, counted from the first step of the process.
        begin_s, end_s: begin and end in seconds of CLOCK_MONOTONIC.
        num_samples: number of samples in the window; None if samples could not be counted.
        wait_s: time inside `next()` of the loaders, and inside `iter()` when an epoch begins; None if the
            program drew from no torch loader.
        num_compilations: new compiled graphs inside the window (they should be none).
        num_device_allocations: cudaMalloc calls inside the window; None without CUDA.
        pace_s: seconds of a fixed loop in Python, on average just before the window and just after it; None
            if unknown.
    """

    first_step: int
    num_steps: int
    begin_s: float
    end_s: float
    num_samples: int | None
    wait_s: float | None
    num_compilations: int = 0
    num_device_allocations: int | None = None
    pace_s: float | None = None


class TraceRecording(msgspec.Struct, frozen=True, kw_only=True):
    """Recording of one process by torch's profiler, as the process reports it.

    Args:
        file: name of the trace file in the run folder; None, with the reason, without a file.
        first_step: index of the first recorded step, counted as in `TimedWindow`.
        stopped_by: what ended the recording: all steps were recorded, or a limit of time or memory was
            reached first.
        num_device_tensors: number of tensors on devices that the program made meanwhile.
        cupti_stays: why CUPTI is still attached to the process, which slows CUDA calls; empty if it is not.
    """

    file: str | None = None
    reason: str = ""
    first_step: int | None = None
    num_steps: int = 0
    begin_s: float | None = None
    end_s: float | None = None
    stopped_by: Literal["steps", "time", "memory"] | None = None
    num_bytes: int | None = None
    stacks: bool = False
    shapes: bool = False
    memory: bool = False
    num_device_tensors: int = 0
    cupti_stays: str = ""
    notes: list[str] = []


class RecordedTrace(TraceRecording, frozen=True, kw_only=True):
    """A recording, and how much longer its steps took.

    `median_step_s`, `median_before_s`: median seconds of the recorded steps, and of steps before; None if
        unknown.
    """

    median_step_s: float | None = None
    median_before_s: float | None = None


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """Record of one process of the command's process tree.

    Args:
        step: description of the cycle that counts as a step; None if no cycle was found.
        draws: whether a step draws batches from a loader; None if no cycle was found, and in older documents.
        time_to_first_step_s: seconds from the launch to the end of the process's first step.
        peak_rss_bytes: the kernel's count of peak resident memory when the process last wrote its record.
        peak_device_bytes: allocator peak over all devices; None without CUDA.
        num_devices: number of GPUs on which the process has allocated memory; None without CUDA.
        out_of_memory: owners of the device's memory when a failed allocation ended the process; "" without a
            failure.
        call_samples: number of samples of a step that draws from no loader, by the leading dimension of the
            inputs of its outermost module; None if it varies, and in older documents.
        already: knobs of the other arm's settings that the process has of its own accord.
        errors: errors of the agent itself, which are hidden from the program.
    """

    pid: int
    argv: list[str]
    executable: str
    python: str
    torch: str | None = None
    rank: int | None = None
    world_size: int = 1
    step: str | None = None
    draws: bool | None = None
    num_steps: int = 0
    num_samples: int | None = None
    time_to_first_step_s: float | None = None
    median_step_s: float | None = None
    windows: list[TimedWindow] = []
    traces: list[RecordedTrace] = []
    peak_rss_bytes: int | None = None
    peak_device_bytes: int | None = None
    num_devices: int | None = None
    readback: list[Readback] = []
    environment_changes: list[EnvironmentChange] = []
    out_of_memory: str = ""
    call_samples: int | None = None
    already: list[str] = []
    errors: list[str] = []

    @property
    def window(self) -> TimedWindow | None:
        """Return the last timed window."""
        return self.windows[-1] if self.windows else None

    @property
    def trace(self) -> RecordedTrace | None:
        """Return the last recorded trace."""
        return self.traces[-1] if self.traces else None


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """Document `run.json` in the run folder.

    Args:
        wall_s: seconds from the launch to the end of the process tree, or until now while the command runs.
        exit_code: the command's exit code; minus the signal's number after a signal; None while the command
            runs.
        sandbox: `overlay` if changes to files went to a copy that is now deleted, else `none`;
            `sandbox_reason`: why there is no overlay although one was requested.
    """

    schema: str = "dynotune.run/2"
    id: str
    purpose: Purpose
    command: list[str]
    cwd: str
    settings: list[Setting]
    started_s: float
    wall_s: float | None = None
    exit_code: int | None = None
    ended_by: EndedBy | None = None
    sandbox: Literal["overlay", "none"] = "none"
    sandbox_reason: str = ""
    changed_files: list[str] = []
    processes: list[Process] = []
    readback: list[Readback] = []
    launched_s: float | None = None
    energy_j: float | Unknown = Unknown("there was no window, or it was not asked for")
    energy_from: Literal["", "counter", "power"] = ""
    peak_tree_bytes: int | Unknown = Unknown("it was not asked for")
    ready_s: float | None = None
