"""Read the present state of GPUs from NVML, without creating a CUDA context."""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dynotune.probe.facts.gpu import QUESTIONS
from dynotune.probe.sampling.gpm import Fullness, Gpm
from dynotune.probe.sampling.pcie_meter import PcieRates
from dynotune.probe.sources import nvml as nvml_facts
from dynotune.probe.sources.kernel_files import process_name
from dynotune.probe.sources.nvml import NvmlUnavailable, answer, close_library, open_library
from dynotune.probe.sources.samples import Gpu, GpuProcess
from dynotune.schema.facts import Unknown, needed, or_unknown

NOT_ASKED = Unknown("GPM counters were not requested")
NO_NEW = PcieRates(*[Unknown("the PCIe link was not read since the previous sample")] * 4)
NO_RATES: Mapping[int, PcieRates] = {}
# Questions about the link take milliseconds, so PcieMeter asks them less often.
_ASKED_OTHERWISE = {"clock_reasons", "processes", *(f"pcie_{field}" for field in PcieRates._fields)}


class GpuCounters:
    """Read the state of GPUs repeatedly.

    `indices`: NVML indices from `nvml.visible_gpus`, or Unknown; if empty, NVML is not loaded.
    `gpm`: also read GPM counters.
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
        if self._unresolved:
            return self._unresolved
        return [self._read(index, ours, pcie.get(index, NO_NEW)) for index in self._indices]

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

    def _fullness(self, index: int, handle: Any) -> Fullness:
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

        def sm_percent(pid: int) -> int | Unknown | None:
            if pid in ours:
                return None
            return shares if isinstance(shares, Unknown) else shares.get(pid, 0)

        return [
            GpuProcess(
                pid=pid,
                name=process_name(pid, self._root),
                ours=pid in ours,
                sm_percent=sm_percent(pid),
            )
            for pid in pids
        ]

    @or_unknown()
    def _sm_percent(self, index: int, handle: Any) -> dict[int, int]:
        """Return each process's highest multiprocessor use (%) since the last call.

        An unlisted process ran nothing.
        """
        library, since_us = self._library, self._since_us[index]
        shares: dict[int, int] = {}
        samples = answer(library, lambda: library.nvmlDeviceGetProcessUtilization(handle, since_us))
        for sample in needed(samples):
            shares[int(sample.pid)] = max(shares.get(int(sample.pid), 0), int(sample.smUtil))
            self._since_us[index] = max(self._since_us[index], int(sample.timeStamp))
        return shares
