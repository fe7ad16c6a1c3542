"""What `dynotune watch` shows: made once a second, and only shown by terminal, page and exporters."""

from __future__ import annotations

from typing import Literal

import msgspec

from dynotune.schema.facts import Unknown

State = Literal["starting", "running", "ended"]
MarkKind = Literal["epoch", "pause", "checkpoint", "bottleneck"]
Cause = Literal["", "input", "device", "host", "cpu", "waiting", "stalled"]


class StepTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Of one rank's steps in the last minute.

    Args:
        rank: its number, or the place of a process without one.
        num_steps: since its start.
        median_s, p95_s, p99_s: within 2%; None without steps.
        input_share: of the steps' time, the wait for the loader's next batch.
        lag: what tells it from the other ranks, in words; empty if nothing does.
    """

    rank: str
    pid: int
    num_steps: int
    median_s: float | None
    p95_s: float | None
    p99_s: float | None
    longest_s: float | None
    samples_per_s: float | None
    input_share: float | None
    lag: str = ""


class Shares(msgspec.Struct, frozen=True, kw_only=True):
    """Of the steps' time in the last ten seconds.

    Args:
        device: a kernel ran on the GPU, by NVML's utilisation.
        rest: neither of the two at least; without a GPU, all but the wait for input.
    """

    input: float
    device: float | Unknown
    rest: float


class GpuView(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU now, by NVML.

    Args:
        utilisation_percent: time in which any kernel ran; says nothing of how full the GPU was.
        sm_active_percent, tensor_active_percent: by NVML's GPM counters, Hopper on; over all multiprocessors.
        clock_limits: why the clock is not higher.
        others: processes of others on it, with the share of time in which their kernels ran.
    """

    nvml_index: int
    utilisation_percent: float | Unknown
    sm_active_percent: float | Unknown
    tensor_active_percent: float | Unknown
    memory_used_bytes: float | Unknown
    memory_bytes: float | Unknown
    power_w: float | Unknown
    sm_clock_mhz: float | Unknown
    temperature_c: float | Unknown
    pcie_rx_bytes_per_s: float | Unknown
    pcie_tx_bytes_per_s: float | Unknown
    clock_limits: list[str] = []
    others: list[str] = []


class ProcessView(msgspec.Struct, frozen=True, kw_only=True):
    """One process now.

    Args:
        role: `rank 0`, `worker of rank 0`, or its name.
        cores: that it kept busy in the last second; None for one that is new.
        state: `running`, `asleep`, `at its disk`, `stopped`, `ended`.
        disk_bytes_per_s, cached_bytes_per_s: that it read from disks, and from memory or pipes.
    """

    pid: int
    role: str
    cores: float | None
    num_threads: int
    rss_bytes: int
    state: str
    disk_bytes_per_s: float | None = None
    cached_bytes_per_s: float | None = None


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """A moment on the time axis."""

    at_s: float
    step: int
    kind: MarkKind
    text: str


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """What `dynotune explain ID` explains, here and now.

    Args:
        whose: a rank, a GPU; empty for the whole run.
        details: lines, such as what each thread waits for.
    """

    id: str
    text: str
    whose: str = ""
    since_step: int | None = None
    details: list[str] = []


class View(msgspec.Struct, frozen=True, kw_only=True):
    """One second's view of a run. Times are on CLOCK_MONOTONIC; `clock_s` is the same moment since 1970."""

    schema: str = "dynotune.view/1"
    run: str
    command: list[str] = []
    at_s: float
    clock_s: float
    state: State
    verdict: str
    cause: Cause = ""
    since_step: int | None = None
    exit_code: int | None = None
    num_steps: int = 0
    steps_s: list[StepTimes] = []
    samples_per_s: float | None = None
    shares: Shares | None = None
    gpus: list[GpuView] | Unknown = []
    processes: list[ProcessView] = []
    num_processes: int = 0
    cores: float | None = None
    num_cpus: int = 1
    others_cores: float | None = None
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    marks: list[Mark] = []
    alerts: list[Alert] = []
    notes: list[str] = []
