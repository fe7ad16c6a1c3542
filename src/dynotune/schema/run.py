"""One launch of a command: what it was asked, and what came of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from dynotune.schema import redaction
from dynotune.schema.facts import Unknown
from dynotune.schema.setting import Setting
from dynotune.schema.task import PageCache, PlannedSetting, Task

Purpose = Literal["run", "pilot", "measured", "live", "results"]
Objective = Literal["throughput", "latency-p99", "time-to-first-step", "memory", "energy"]
Phase = Literal["training", "inference"]
Caches = Literal["warm", "cold"]
EndedBy = Literal["command", "window", "timeout", "user"]


class PretendedGpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU that the program is to find, without memory and without work behind it."""

    name: str
    total_bytes: int
    compute_capability: tuple[int, int]
    num_multiprocessors: int


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Description of a command's run, which requests hold, documents store and `--resume` reads.

    Args:
        command: may hold placeholders, such as `{run_dir}`.
        cwd: the folder it runs in, absolute.
        env: the variables it inherits. They may be secrets, so `recorded` drops them.
        step_function: `module:function` whose return ends a step, or `dynotune.step`; None to find the step.
        phase: of which a step is looked for; None for training where there is any.
        ready_pattern: a regular expression for the line of output that ends a start; None to wait for a step.
        seed: for random, numpy, torch and the order of runs; None leaves the program's own.
        page_cache: "cold" drops the data files' pages before the loader is timed alone.
        sandbox: work on a copy-on-write view of `cwd` where the kernel allows it.
        run_to_end: let the command end by itself instead of ending it after its window.
        nice: niceness that the command runs at, 0 to 19, where 19 gives way to everything else.
        timeout_s: most time for one run, seconds; None for a limit from what earlier runs took.
        lock: wait for another dynotune that measures on the same cores or GPU.
        pretend: the GPU that the program finds in place of those of the machine.
        lanes: fresh runs side by side, each on a GPU and cores of its own; 0 for as many as there are idle GPUs.
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
        """Return the stored spec, with `now`'s values for what belongs to this call (environment, folder, lock)."""
        return msgspec.structs.replace(self, env=now.env, base=now.base, lock=now.lock)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Plan of the agent; `plan.json` in the run folder.

    Args:
        seed: given to random, numpy and torch before the program draws from them; None leaves them.
        note_events: note in which steps something was compiled or allocated.
        observe: look at the state of the process, and write it with its window (event `state`).
        sync_steps: wait for the device at the end of each step, for the time of single ones.
        startup: note what the start is made of (events `span`).
        pretend: as `RunSpec.pretend`.
        watched: when a record is full, go on in further files, of which the newest are kept; and say by which signal
            the threads' stacks are written.
        secret_hints, secret_patterns: what the record leaves out, as `schema.redaction` has it.
    """

    schema: str = "dynotune.plan/2"
    settings: list[PlannedSetting] = []
    tasks: list[Task] = []
    live: bool = False
    step_function: str | None = None
    phase: Phase | None = None
    seed: int | None = None
    note_events: bool = False
    observe: bool = False
    sync_steps: bool = False
    startup: bool = False
    pretend: PretendedGpu | None = None
    watched: bool = False
    secret_hints: tuple[str, ...] = redaction.HINTS
    secret_patterns: tuple[str, ...] = redaction.PATTERNS


class Readback(msgspec.Struct, frozen=True):
    """Report of the live process on a setting.

    Args:
        asked: the value asked for, as text.
        found: the value found, as text; Unknown where nothing can witness it.
        witness: what was looked at, in words.
        ok: found is what was asked; None where it is unverified.
        detail: why it could not be applied, or what changed it; may be empty.
    """

    knob: str
    asked: str
    found: str | Unknown
    witness: str
    ok: bool | None
    detail: str = ""


class EnvironmentChange(msgspec.Struct, frozen=True):
    """Change of a watched environment variable that the program was about to set or remove.

    Args:
        value: the new value; None when it was removed.
        file, line, function: who did it: the innermost frame outside the standard library's os module.
        kept: the change was held back because a setting keeps this variable.
        fresh: the value is a folder that this run made for itself: temporary, or named after its process.
    """

    name: str
    value: str | None
    file: str
    line: int
    function: str
    kept: bool = False
    fresh: bool = False


class TimedWindow(msgspec.Struct, frozen=True, kw_only=True):
    """The timed window of one process, the device synchronised at both ends.

    Args:
        first_step: index of its first step, counted from the first step of the process.
        begin_s, end_s: CLOCK_MONOTONIC.
        num_samples: None where they could not be counted.
        wait_s: time inside `next()` of the loaders, and `iter()` where an epoch begins; None where no torch loader was
            drawn from.
        num_compilations: new compiled graphs inside the window (they should be none).
        num_device_allocations: cudaMalloc calls inside the window; None without CUDA.
    """

    first_step: int
    num_steps: int
    begin_s: float
    end_s: float
    num_samples: int | None
    wait_s: float | None
    num_compilations: int = 0
    num_device_allocations: int | None = None


class RecordedTrace(msgspec.Struct, frozen=True, kw_only=True):
    """Recording of one process by torch's profiler.

    Args:
        file: in the run folder; None where there is none, for the reason.
        first_step: index of the first step in it, counted as in `TimedWindow`.
        stopped_by: what ended it: all steps were recorded, or a limit of time or memory was reached before.
    """

    file: str | None
    reason: str = ""
    first_step: int | None = None
    num_steps: int = 0
    begin_s: float | None = None
    end_s: float | None = None
    median_step_s: float | None = None
    median_before_s: float | None = None
    stopped_by: Literal["steps", "time", "memory"] | None = None
    num_bytes: int | None = None
    stacks: bool = False
    shapes: bool = False
    memory: bool = False
    notes: list[str] = []


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """Record of one process of the tree.

    Args:
        step: the cycle that counts as a step, in words; None when none was found.
        time_to_first_step_s: from the launch to the end of its first step.
        peak_rss_bytes: as the kernel counted it when the process last wrote.
        peak_device_bytes: allocator peak over all devices; None without CUDA.
        num_devices: GPUs that it has allocated on; None without CUDA.
        out_of_memory: what held the device's memory when an allocation failed, and ended it; "" without that.
        errors: mistakes of the agent's own; the program never saw them.
    """

    pid: int
    argv: list[str]
    executable: str
    python: str
    torch: str | None = None
    rank: int | None = None
    world_size: int = 1
    step: str | None = None
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
    errors: list[str] = []

    @property
    def window(self) -> TimedWindow | None:
        """Return the last one."""
        return self.windows[-1] if self.windows else None

    @property
    def trace(self) -> RecordedTrace | None:
        """Return the last one."""
        return self.traces[-1] if self.traces else None


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """Document `run.json` in the run folder.

    Args:
        wall_s: from launch to the end of the process tree; so far, while it runs.
        exit_code: of the command; minus the signal's number when a signal ended it; None while it runs.
        sandbox: `overlay` when those changes went to a copy that is gone, else `none`; `sandbox_reason`: why, where one
            was asked for.
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
