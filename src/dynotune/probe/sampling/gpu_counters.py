"""Read the present state of GPUs from NVML, without creating a CUDA context, and the GPU memory of one process.

A separate thread reads the PCIe link of GPUs and its traffic, because each reading takes 20 ms.
"""

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from dynotune.probe.facts.gpu import QUESTIONS
from dynotune.probe.sources import nvml as nvml_facts
from dynotune.probe.sources.kernel_files import process_name
from dynotune.probe.sources.nvml import NvmlUnavailable, answer, close_library, open_library, session, visible_in
from dynotune.probe.sources.samples import Gpu, GpuProcess
from dynotune.schema.facts import Unknown, needed, or_unknown

INTERVAL_S = 1.0
CPU_SHARE = 0.002
"""Largest share of one core for this thread. If the driver waits by spinning, readings become less frequent."""

STOP_S = 1.0

KIB = 1024
"""NVML's KB."""


class PcieRates(NamedTuple):
    """PCIe rates of one GPU over 20 ms, and the state of its link right afterwards."""

    rx_bytes_per_s: int | Unknown
    tx_bytes_per_s: int | Unknown
    generation: int | Unknown
    width: int | Unknown


class PcieMeter:
    """Reader of each GPU's PCIe rates in turn, repeatedly. `indices`: NVML indices; if empty, no thread starts."""

    def __init__(self, indices: Sequence[int], *, interval_s: float = INTERVAL_S, nvml: Any = None) -> None:
        self._indices = list(indices)
        self._interval_s = interval_s
        self._nvml = nvml
        self._lock = threading.Lock()
        self._rates: dict[int, PcieRates] = {}
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.error: str | None = None
        """The error that ended the readings early, if any."""

    def start(self) -> None:
        """Read PCIe rates in a thread until `stop`."""
        if self._indices:
            self._thread = threading.Thread(target=self._run, name="dynotune-pcie", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread without waiting for a driver that does not answer."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(STOP_S)

    def take(self) -> dict[int, PcieRates]:
        """Return the newest reading of each GPU since the last call."""
        with self._lock:
            taken, self._rates = self._rates, {}
        return taken

    def _run(self) -> None:
        try:
            with session(self._nvml) as library:
                while not self._stopping.wait(self._ask(library)):
                    pass
        except NvmlUnavailable:
            # The sampler uses the same library and reports why it does not answer.
            return
        except Exception as error:
            self.error = f"asking for PCIe throughput ended: {error!r}"

    def _ask(self, library: Any) -> float:
        """Read every GPU; return the seconds to wait before the next round."""
        begin_s, begin_cpu_s = time.monotonic(), time.thread_time()
        rates = {index: self._rates_of(library, index) for index in self._indices if not self._stopping.is_set()}
        with self._lock:
            self._rates |= rates
        took_s, cpu_s = time.monotonic() - begin_s, time.thread_time() - begin_cpu_s
        return max(self._interval_s, cpu_s / CPU_SHARE) - took_s

    def _rates_of(self, library: Any, index: int) -> PcieRates:
        handle = answer(library, lambda: library.nvmlDeviceGetHandleByIndex(index))
        if isinstance(handle, Unknown):
            return PcieRates(handle, handle, handle, handle)

        def ask(counter: int) -> int | Unknown:
            return answer(library, lambda: KIB * int(library.nvmlDeviceGetPcieThroughput(handle, counter)))

        return PcieRates(
            ask(library.NVML_PCIE_UTIL_RX_BYTES),
            ask(library.NVML_PCIE_UTIL_TX_BYTES),
            answer(library, lambda: int(library.nvmlDeviceGetCurrPcieLinkGeneration(handle))),
            answer(library, lambda: int(library.nvmlDeviceGetCurrPcieLinkWidth(handle))),
        )


NOT_ASKED = Unknown("GPM counters were not requested")
FIRST = Unknown("there is no earlier reading")
NOT_HERE = Unknown("this GPU has no GPM counters: Hopper and later have them")

Fullness = tuple[float | Unknown, float | Unknown]

MOST_OUTSIDE_BYTES = 3 << 30
"""The context, modules and libraries of one process use less than this beyond torch's allocator."""


class Gpm:
    """Read the counters of one GPU between one reading and the next. Call `close` before closing NVML."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._library, self._handle = library, handle
        self._samples: list[Any] = []  # the last reading, and a buffer for the next one
        self._is_first = True
        found = answer(library, lambda: bool(library.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice))
        self._unknown = found if isinstance(found, Unknown) else None if found else NOT_HERE

    def read(self) -> Fullness:
        """Return the mean percentages of time in which multiprocessors had a warp, and tensor cores were active."""
        found: Any = self._unknown or answer(self._library, self._read)
        return (found, found) if isinstance(found, Unknown) else found

    def close(self) -> None:
        while self._samples:
            answer(self._library, lambda: self._library.nvmlGpmSampleFree(self._samples.pop()))

    def _read(self) -> Fullness:
        library = self._library
        while len(self._samples) < 2:
            self._samples.append(library.nvmlGpmSampleAlloc())
        library.nvmlGpmSampleGet(self._handle, self._samples[1])
        self._samples.reverse()
        if self._is_first:
            self._is_first = False
            return FIRST, FIRST
        asked = library.c_nvmlGpmMetricsGet_t()
        asked.version, asked.numMetrics = library.NVML_GPM_METRICS_GET_VERSION, 2
        asked.sample2, asked.sample1 = self._samples
        asked.metrics[0].metricId = library.NVML_GPM_METRIC_SM_UTIL
        asked.metrics[1].metricId = library.NVML_GPM_METRIC_ANY_TENSOR_UTIL
        found = library.nvmlGpmMetricsGet(asked).metrics
        unsaid = Unknown("NVML does not say: the counter is not there")
        sm, tensor = (found[at].value if found[at].nvmlReturn == library.NVML_SUCCESS else unsaid for at in (0, 1))
        return sm, tensor


NO_NEW = PcieRates(*[Unknown("the PCIe link was not read since the previous sample")] * 4)
NO_RATES: Mapping[int, PcieRates] = {}
# Questions about the link take milliseconds, so PcieMeter asks them less often.
_ASKED_OTHERWISE = {"clock_reasons", "processes", *(f"pcie_{field}" for field in PcieRates._fields)}


class GpuCounters:
    """Read the state of GPUs repeatedly.

    `indices`: NVML indices from `nvml.visible_gpus`, or Unknown; if empty, NVML is not loaded. `gpm`: also read GPM
    counters.
    """

    def __init__(
        self, indices: Sequence[int] | Unknown, *, nvml: Any = None, root: Path = Path("/"), gpm: bool = False
    ) -> None:
        self._unresolved = indices if isinstance(indices, Unknown) else None
        self._indices = [] if isinstance(indices, Unknown) else list(indices)
        self._root = root
        self._gpm: dict[int, Gpm] | None = {} if gpm else None
        self._library: Any = None
        self._unavailable = Unknown("NVML was not asked")
        self._since_us = dict.fromkeys(self._indices, 0)
        if not self._indices:
            return
        try:
            self._library = open_library(nvml)
        except NvmlUnavailable as unavailable:
            self._unavailable = unavailable.unknown

    def read(self, ours: Collection[int], pcie: Mapping[int, PcieRates] = NO_RATES) -> list[Gpu] | Unknown:
        """Read every GPU once; a value that NVML refuses is Unknown.

        `ours`: ids of processes that are or were in the measured tree. `pcie`: result of `PcieMeter.take`.
        """
        return self._unresolved or [self._read(index, ours, pcie.get(index, NO_NEW)) for index in self._indices]

    def close(self) -> None:
        if self._library is not None:
            for gpm in (self._gpm or {}).values():
                gpm.close()
            close_library(self._library)
            self._library = None

    def _read(self, index: int, ours: Collection[int], rates: PcieRates) -> Gpu:
        library = self._library
        handle: Any = self._unavailable
        if library is not None:
            handle = answer(library, lambda: library.nvmlDeviceGetHandleByIndex(index))
        if isinstance(handle, Unknown):
            return Gpu(nvml_index=index, **dict.fromkeys(Gpu.__struct_fields__[1:], handle))

        asked: dict[str, Any] = {
            field: answer(library, partial(QUESTIONS[field], library, handle))
            for field in Gpu.__struct_fields__
            if field in QUESTIONS and field not in _ASKED_OTHERWISE
        }
        asked |= {f"pcie_{field}": found for field, found in rates._asdict().items()}
        asked["sm_active_percent"], asked["tensor_active_percent"] = self._fullness(index, handle)
        return Gpu(
            nvml_index=index,
            clock_reasons=answer(library, lambda: nvml_facts.clock_reasons(library, handle)),
            processes=self._processes(index, handle, ours),
            energy_j=answer(library, lambda: library.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000),
            **asked,
        )

    def _fullness(self, index: int, handle: Any) -> tuple[float | Unknown, float | Unknown]:
        if self._gpm is None:
            return NOT_ASKED, NOT_ASKED
        if index not in self._gpm:
            self._gpm[index] = Gpm(self._library, handle)
        return self._gpm[index].read()

    @or_unknown()
    def _processes(self, index: int, handle: Any, ours: Collection[int]) -> list[GpuProcess]:
        library = self._library
        running = needed(answer(library, lambda: library.nvmlDeviceGetComputeRunningProcesses(handle)))
        pids = sorted({int(process.pid) for process in running})
        foreign = [pid for pid in pids if pid not in ours]
        shares = self._sm_percent(index, handle) if foreign else {}
        return [
            GpuProcess(
                pid=pid,
                name=process_name(pid, self._root),
                ours=pid in ours,
                sm_percent=None if pid in ours else shares if isinstance(shares, Unknown) else shares.get(pid, 0),
            )
            for pid in pids
        ]

    @or_unknown()
    def _sm_percent(self, index: int, handle: Any) -> dict[int, int]:
        """Return each process's highest multiprocessor use (%) since the last call; an unlisted process ran nothing."""
        library, since_us = self._library, self._since_us[index]
        shares: dict[int, int] = {}
        for sample in needed(answer(library, lambda: library.nvmlDeviceGetProcessUtilization(handle, since_us))):
            shares[int(sample.pid)] = max(shares.get(int(sample.pid), 0), int(sample.smUtil))
            self._since_us[index] = max(self._since_us[index], int(sample.timeStamp))
        return shares


class DeviceMemory(NamedTuple):
    """Memory in use on a GPU in total, and by each process that NVML lists."""

    used_bytes: int
    by_pid: Mapping[int, int]


@or_unknown()
def device_memory(env: Mapping[str, str], cuda_index: int, *, nvml: Any = None) -> DeviceMemory | Unknown:
    """Return the memory in use on the GPU that a command under `env` numbers `cuda_index`."""
    with session(nvml) as library:
        visible = needed(visible_in(library, env))
        if cuda_index >= len(visible):
            return Unknown(f"NVML lists no GPU {cuda_index} for this command")
        return needed(answer(library, lambda: _memory(library, visible[cuda_index])))


def _memory(nvml: Any, index: int) -> DeviceMemory:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    used: Any = QUESTIONS["memory_used_bytes"](nvml, handle)
    listed = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    return DeviceMemory(int(used), {int(one.pid): int(one.usedGpuMemory) for one in listed if one.usedGpuMemory})


def own_bytes(
    now: DeviceMemory | Unknown, before: DeviceMemory | Unknown, pid: int, reserved_bytes: int
) -> tuple[int | Unknown, str]:
    """Return the memory (bytes) of process `pid`, and its source; "" if NVML lists the process by this id.

    A container may number processes differently. In that case the process is taken to be the process that NVML lists
    since the start, with at least the memory that its allocator reserved. If NVML lists no process, the growth of the
    device's memory in use counts.
    """
    if isinstance(now, Unknown):
        return now, ""
    if now.by_pid.get(pid, -1) >= reserved_bytes:  # or the id belongs to a different process outside the container
        return now.by_pid[pid], ""
    if isinstance(before, Unknown):
        return Unknown("NVML does not list the process: in a container it may have another number outside"), ""
    came = [size for other, size in now.by_pid.items() if other not in before.by_pid]
    found, how = came, "that of the process which NVML lists since its start"
    if not now.by_pid:
        found, how = [now.used_bytes - before.used_bytes], "what the device had more in use than before its start"
    fitting = [size for size in found if reserved_bytes <= size <= reserved_bytes + MOST_OUTSIDE_BYTES]
    if len(fitting) == 1:
        return fitting[0], how
    return Unknown("NVML does not tell the process from others on the GPU"), ""
