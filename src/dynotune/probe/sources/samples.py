"""Define a sample, the machine's state at one time, and `samples.jsonl`: a line with the schema, then the
samples."""

import errno
import os
from pathlib import Path

import msgspec

from dynotune.schema import untrusted
from dynotune.schema.document import check_schema, encode, parse
from dynotune.schema.errors import RecordError, may_fail
from dynotune.schema.facts import Unknown

SCHEMA = "dynotune.samples/1"

NOT_RECORDED = Unknown("the version of dynotune that took these samples did not record it")


class Cores(msgspec.Struct, frozen=True, kw_only=True, tag="cores"):
    """Seconds summed over our cores since the machine started.

    Args:
        busy_s: time in processes, including the kernel on their behalf, without interrupts.
        steal_s: time in which a core was ready to run but the hypervisor ran something else.
    """

    num_cpus: int
    busy_s: float
    idle_s: float
    steal_s: float

    @property
    def counted_s(self) -> float:
        """Return the sum of all times. `idle_s` alone may fall a little, because the kernel may correct
        iowait."""
        return self.busy_s + self.idle_s + self.steal_s


class Tree(msgspec.Struct, frozen=True, kw_only=True, tag="tree"):
    """Usage of the measured process tree since the first sample; no value falls when a process ends.

    `num_major_faults`: page faults that waited for a disk, swap or a file.
    """

    cpu_s: float
    num_major_faults: int


class Quota(msgspec.Struct, frozen=True, kw_only=True, tag="quota"):
    """The control group whose CPU bandwidth is limited.

    Args:
        throttled_s: summed over the group's cores.
        usage_s: CPU time of all processes in the group; Unknown if the group does not count it.
    """

    cores: float
    num_throttled: int
    throttled_s: float
    usage_s: float | Unknown


class ByName(msgspec.Struct, frozen=True, kw_only=True, tag="by_name"):
    """Counts that have their own names."""

    values: dict[str, float]


class GpuProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process with a context on a GPU, as NVML lists it.

    Args:
        name: name of the local process with that id; None without such a process.
        ours: whether the process id has been in the measured tree.
        sm_percent: recent share of time in which the process's kernels ran; read for foreign processes only.
    """

    pid: int
    name: str | None
    ours: bool
    sm_percent: int | Unknown | None = None


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU, from NVML.

    Args:
        clock_reasons: bit mask, `nvmlClocksEventReason*`.
        pcie_rx_bytes_per_s: rate into the GPU, over 20 ms. Like `tx` and the link's generation and width, it
            is read less often than the other fields, and is Unknown in between.
        pcie_replays, energy_j: counted since the driver was loaded.
        sm_active_percent, tensor_active_percent: by GPM, since the previous sample; read only for `watched`
            samplers.
    """

    nvml_index: int
    utilisation_percent: int | Unknown
    memory_used_bytes: int | Unknown
    sm_clock_mhz: int | Unknown
    power_w: float | Unknown
    clock_reasons: int | Unknown
    processes: list[GpuProcess] | Unknown
    memory_clock_mhz: int | Unknown = NOT_RECORDED
    temperature_c: int | Unknown = NOT_RECORDED
    pcie_replays: int | Unknown = NOT_RECORDED
    pcie_rx_bytes_per_s: int | Unknown = NOT_RECORDED
    pcie_tx_bytes_per_s: int | Unknown = NOT_RECORDED
    pcie_generation: int | Unknown = NOT_RECORDED
    pcie_width: int | Unknown = NOT_RECORDED
    energy_j: float | Unknown = NOT_RECORDED
    memory_bytes: int | Unknown = NOT_RECORDED
    sm_active_percent: float | Unknown = NOT_RECORDED
    tensor_active_percent: float | Unknown = NOT_RECORDED


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """State of the machine and the process tree at one time.

    Args:
        time_s: time of the sample (CLOCK_MONOTONIC).
        own_cpu_s: CPU time of dynotune's own process.
        quota: throttling by the CPU quota; None without a limit.
        gpus: Unknown if the command's GPUs are unknown.
        pids_comparable: whether process ids seen here are the kernel's own, which NVML reports.
        vmstat: counters of `/proc/vmstat` since the machine started.
        memory_events: events of our control group since its creation.
        tree_bytes: memory of the tree, with shared pages counted once; None if not requested.
    """

    time_s: float
    cores: Cores | Unknown
    tree: Tree | Unknown
    own_cpu_s: float
    quota: Quota | Unknown | None
    gpus: list[Gpu] | Unknown = []
    pids_comparable: bool = False
    vmstat: ByName | Unknown = NOT_RECORDED
    memory_events: ByName | Unknown = NOT_RECORDED
    tree_bytes: int | Unknown | None = None


class _Header(msgspec.Struct, frozen=True):
    schema: str = ""


class SamplesFile:
    """File `samples.jsonl`. Each sample is appended at once, so all samples survive when dynotune is killed.

    Raises OSError: a write to the disk failed, in any of the methods.
    """

    def __init__(self, path: Path) -> None:
        # Unbuffered: after a failed write, closing the file then has nothing to write again.
        self._file = path.open("ab", buffering=0)
        if self._file.tell() == 0:
            self._line(_Header(SCHEMA))

    def append(self, sample: Sample) -> None:
        self._line(sample)

    def close(self) -> None:
        self._file.close()

    def _line(self, document: msgspec.Struct) -> None:
        line = encode(document, indent=0) + b"\n"
        if self._file.write(line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def read_samples(path: Path) -> list[Sample]:
    """Read the samples of a `samples.jsonl`; ignore a last line without its end, whose writing was
    interrupted.

    Raises RecordError: the file is missing, damaged, or of a version unknown to this dynotune.
    """
    with may_fail(f"read {path}", "", RecordError):
        lines = untrusted.read(path, link=False).split(b"\n")[:-1]
    try:
        header = parse(lines[0], _Header).schema if lines else ""
        check_schema(header, SCHEMA, name=str(path))
        return [parse(line, Sample) for line in lines[1:]]
    except ValueError as error:
        raise RecordError(f"{path} is not a valid {SCHEMA}: {error}.") from error
