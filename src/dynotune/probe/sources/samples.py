"""What the sampler keeps of one moment, and `samples.jsonl`: a line with the schema, then a sample a line."""

import errno
import os
from pathlib import Path

import msgspec

from dynotune.schema.document import check_schema, encode, parse
from dynotune.schema.errors import RecordError, may_fail
from dynotune.schema.facts import Unknown

SCHEMA = "dynotune.samples/1"

NOT_RECORDED = Unknown("these samples were taken by a dynotune that did not record it")


class Cores(msgspec.Struct, frozen=True, kw_only=True, tag="cores"):
    """Seconds summed over our cores since the machine started.

    Args:
        busy_s: running processes, the kernel on their behalf included; interrupts are left out.
        steal_s: ready to run, but the hypervisor ran something else.
    """

    num_cpus: int
    busy_s: float
    idle_s: float
    steal_s: float

    @property
    def counted_s(self) -> float:
        """Return all of it. `idle_s` alone may fall a little: the kernel may take iowait back."""
        return self.busy_s + self.idle_s + self.steal_s


class Tree(msgspec.Struct, frozen=True, kw_only=True, tag="tree"):
    """Usage of the arm's process tree since it was first sampled; never falls when a process ends.

    `num_major_faults`: pages it had to wait for from a disk, swap or a file.
    """

    cpu_s: float
    num_major_faults: int


class Quota(msgspec.Struct, frozen=True, kw_only=True, tag="quota"):
    """The control group whose CPU bandwidth is limited.

    Args:
        throttled_s: summed over its cores.
        usage_s: CPU time of every process in the group; Unknown where the group does not count it.
    """

    cores: float
    num_throttled: int
    throttled_s: float
    usage_s: float | Unknown


class ByName(msgspec.Struct, frozen=True, kw_only=True, tag="by_name"):
    """Counts that have names of their own."""

    values: dict[str, float]


class GpuProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that holds a context on a GPU, as NVML names it.

    Args:
        name: of that process id here; None where there is no such process here.
        ours: the process id has been in the arm's tree.
        sm_percent: share of time its kernels ran lately; asked for foreign processes only.
    """

    pid: int
    name: str | None
    ours: bool
    sm_percent: int | Unknown | None = None


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU, by NVML.

    Args:
        clock_reasons: bit mask, `nvmlClocksEventReason*`.
        pcie_rx_bytes_per_s: into the GPU, over 20 ms; asked, with `tx` and the link's generation and width, less often
            than the rest, and Unknown in between.
        pcie_replays, energy_j: since the driver was loaded.
        sm_active_percent, tensor_active_percent: by GPM, since the sample before; asked for by a watcher only.
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
    """One moment.

    Args:
        time_s: CLOCK_MONOTONIC.
        own_cpu_s: CPU time of dynotune's own process.
        quota: None where no limit is set.
        gpus: Unknown where it is not known which ones the command sees.
        pids_comparable: process ids seen here are the kernel's own, as NVML reports them.
        vmstat: counters of `/proc/vmstat` since the machine started.
        memory_events: of our control group, since it was made.
        tree_bytes: memory of the tree, shared pages counted once; None where it was not asked for.
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
    """File `samples.jsonl`, to which each sample is appended at once: a killed dynotune leaves what it saw.

    Raises OSError: from any of its methods, when the disk refuses.
    """

    def __init__(self, path: Path) -> None:
        # Unbuffered: after a failed write nothing is left that closing would try to write again.
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
    """Read the samples of a `samples.jsonl`; a last line without its end was being written and is left out.

    Raises RecordError: missing, damaged, or of a version this dynotune does not know.
    """
    with may_fail(f"read {path}", "", RecordError):
        lines = path.read_bytes().split(b"\n")[:-1]
    try:
        header = parse(lines[0], _Header).schema if lines else ""
        check_schema(header, SCHEMA, name=str(path))
        return [parse(line, Sample) for line in lines[1:]]
    except ValueError as error:
        raise RecordError(f"{path} is not a valid {SCHEMA}: {error}.") from error
