"""The state that `dynotune watch` displays: computed once a second, and shown by terminal, page and metrics.

Terminal, page and metrics derive the label and format of a value from the unit at the end of the field's
name.
"""

from typing import Literal

import msgspec

from dynotune.schema.facts import Unknown

AlertId = Literal["input-bound", "throughput-drop", "memory-growth", "rank-lag", "stalled", "device-shared"]
Cause = Literal["", "input", "device", "host", "cpu", "waiting", "stalled"]


class StepTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of one rank in the last minute."""

    rank: str
    pid: int
    num_steps: int
    median_s: float | None = None
    p95_s: float | None = None
    p99_s: float | None = None
    samples_per_s: float | None = None
    input_share: float | None = None
    longest_s: float | None = None


class GpuView(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU now, by NVML."""

    nvml_index: int
    kernel_running_percent: float | Unknown
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
    """One process of the run; rates and shares are averages over the last ten seconds.

    `role`: what the process does, in words. `is_worker`: whether it makes batches for a process that makes
        steps.
    """

    pid: int
    role: str
    is_worker: bool = False
    cores: float | None
    num_threads: int
    rss_bytes: int
    state: str
    at_disk_share: float = 0.0
    disk_bytes_per_s: float | None = None
    read_bytes_per_s: float | None = None


class Epoch(msgspec.Struct, frozen=True, kw_only=True):
    """The epoch in progress, from 1. `step`: steps in it so far; `num_steps`: of the epoch before, if one
    ended."""

    number: int
    step: int
    num_steps: int | None = None


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """A labelled point on the time axis."""

    at_s: float
    step: int
    kind: Literal["epoch", "pause", "bottleneck"]
    text: str


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """An alert; `whose` is a rank, a GPU, or "" for the whole run."""

    id: AlertId
    text: str
    whose: str = ""
    since_step: int | None = None
    details: list[str] = []


class View(msgspec.Struct, frozen=True, kw_only=True):
    """State of a run in one second. Times are on CLOCK_MONOTONIC; `clock_s` is the same time in seconds since
    1970.

    Args:
        headline: the verdict in two or three words; "" if there is none.
        begun_s: when the run's first process began.
        num_steps, steps_per_s, epoch: of the first rank; the rate is of the last ten seconds.
        others: cores that other programs use.
        memory_left_bytes: memory of the machine that is available.
        recent: values of the last minute, one a second and the newest last; None where there was none.
            Means over ranks and GPUs, but rates of samples are sums.
    """

    schema: str = "dynotune.view/1"
    command: list[str]
    at_s: float
    clock_s: float
    state: Literal["starting", "running", "ended"]
    headline: str = ""
    verdict: str
    cause: Cause
    begun_s: float | None = None
    since_step: int | None
    exit_code: int | None
    num_steps: int
    steps_per_s: float | None = None
    epoch: Epoch | None = None
    steps_s: list[StepTimes]
    samples_per_s: float | None
    gpus: list[GpuView] | Unknown
    processes: list[ProcessView]
    num_processes: int
    cores: float | None
    others: float | None = None
    num_cpus: int
    memory_bytes: int
    memory_left_bytes: int | None = None
    recent: dict[str, list[float | None]] = {}
    marks: list[Mark]
    alerts: list[Alert]
    notes: list[str]
