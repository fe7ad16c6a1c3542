"""A root folder with recorded `/proc` and `/sys` files, and an NVML that says what a test wants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest


class Root:
    """Writes files below a folder that stands for `/`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, name: str, text: str) -> None:
        file = self.path / name.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def namespace(self, name: str, inode: int) -> None:
        link = self.path / "proc/self/ns" / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(f"{name}:[{inode}]")

    def cpus(self, *cores: tuple[int, int, int]) -> None:
        """`/proc/stat` with (busy, idle, steal) ticks a core."""
        lines = [f"cpu{n} {busy} 0 0 {idle} 0 0 0 {steal} 0 0" for n, (busy, idle, steal) in enumerate(cores)]
        self.write("proc/stat", "\n".join(["cpu 1 2 3 4 5 6 7 8 9 10", *lines, "intr 5 0 0", ""]))

    def process(
        self,
        pid: int,
        *,
        ticks: int = 0,
        waited: int = 0,
        faults: int = 0,
        waited_faults: int = 0,
        start: int = 1,
        parent: int = 1,
        name: str = "python",
    ) -> None:
        # From field 4 of proc_pid_stat(5) on.
        numbers = [
            parent,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            faults,
            waited_faults,
            ticks,
            0,
            waited,
            0,
            20,
            0,
            1,
            0,
            start,
            0,
        ]
        self.write(f"proc/{pid}/stat", f"{pid} ({name}) S {' '.join(map(str, numbers))}\n")
        self.write(f"proc/{pid}/comm", f"{name}\n")

    def end_process(self, pid: int) -> None:
        for file in sorted((self.path / "proc" / str(pid)).rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() else file.unlink()
        (self.path / "proc" / str(pid)).rmdir()

    def swap(self, num_in: int, num_out: int) -> None:
        self.write("proc/vmstat", f"nr_free_pages 1\npswpin {num_in}\npswpout {num_out}\n")


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path / "root")


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"code {value}")
        self.value = value


class FakeNvml:
    """As much of `pynvml` as is called. `gpus` is a list of dictionaries; what one lacks is not supported."""

    NVMLError = NVMLError
    NVML_ERROR_INVALID_ARGUMENT = 2
    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_ERROR_DRIVER_NOT_LOADED = 9
    NVML_ERROR_LIBRARY_NOT_FOUND = 12
    NVML_ERROR_FUNCTION_NOT_FOUND = 13
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_DEVICE_MIG_ENABLE = 1
    NVML_FEATURE_ENABLED = 1
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    NVML_TEMPERATURE_GPU = 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    NVML_PCIE_UTIL_TX_BYTES = 0
    NVML_PCIE_UTIL_RX_BYTES = 1
    NVML_NVLINK_MAX_LINKS = 18
    NVML_TOPOLOGY_INTERNAL = 0
    NVML_TOPOLOGY_SINGLE = 10
    NVML_TOPOLOGY_MULTIPLE = 20
    NVML_TOPOLOGY_HOSTBRIDGE = 30
    NVML_TOPOLOGY_NODE = 40
    NVML_TOPOLOGY_SYSTEM = 50

    def __init__(self, *gpus: Mapping[str, Any], init_error: int | None = None) -> None:
        self.gpus = [dict(gpu) for gpu in gpus]
        self.init_error = init_error
        self.num_open = 0
        self.lost = False

    def lose(self) -> None:
        """Every GPU falls off the bus."""
        self.lost = True

    def nvmlInit(self) -> None:
        if self.init_error is not None:
            raise NVMLError(self.init_error)
        self.num_open += 1

    def nvmlShutdown(self) -> None:
        self.num_open -= 1
        if self.lost:
            raise NVMLError(self.NVML_ERROR_GPU_IS_LOST)

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.159.04"

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        return 13000

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:
        return self.gpus[index]

    def nvmlDeviceGetUUID(self, gpu: Mapping[str, Any]) -> str:
        return str(self._get(gpu, "uuid"))

    def nvmlDeviceGetName(self, gpu: Mapping[str, Any]) -> str:
        return str(self._get(gpu, "name"))

    def nvmlDeviceGetCudaComputeCapability(self, gpu: Mapping[str, Any]) -> tuple[int, int]:
        major, minor = self._get(gpu, "capability")
        return major, minor

    def nvmlDeviceGetMemoryInfo(self, gpu: Mapping[str, Any]) -> SimpleNamespace:
        return SimpleNamespace(total=self._get(gpu, "memory"), used=gpu.get("used", 0))

    def nvmlDeviceGetMigMode(self, gpu: Mapping[str, Any]) -> list[int]:
        return [self._get(gpu, "mig"), 0]

    def nvmlDeviceGetUtilizationRates(self, gpu: Mapping[str, Any]) -> SimpleNamespace:
        return SimpleNamespace(gpu=self._get(gpu, "utilisation"), memory=0)

    def nvmlDeviceGetClockInfo(self, gpu: Mapping[str, Any], kind: int) -> int:
        return int(self._get(gpu, "clock" if kind == self.NVML_CLOCK_SM else "memory_clock"))

    def nvmlDeviceGetMaxClockInfo(self, gpu: Mapping[str, Any], kind: int) -> int:
        return int(self._get(gpu, "max_clock" if kind == self.NVML_CLOCK_SM else "max_memory_clock"))

    def nvmlDeviceGetTemperature(self, gpu: Mapping[str, Any], _sensor: int) -> int:
        return int(self._get(gpu, "temperature"))

    def nvmlDeviceGetCurrPcieLinkGeneration(self, gpu: Mapping[str, Any]) -> int:
        return int(self._get(gpu, "generation")[0])

    def nvmlDeviceGetMaxPcieLinkGeneration(self, gpu: Mapping[str, Any]) -> int:
        return int(self._get(gpu, "generation")[1])

    def nvmlDeviceGetCurrPcieLinkWidth(self, gpu: Mapping[str, Any]) -> int:
        return int(self._get(gpu, "width")[0])

    def nvmlDeviceGetMaxPcieLinkWidth(self, gpu: Mapping[str, Any]) -> int:
        return int(self._get(gpu, "width")[1])

    def nvmlDeviceGetPcieReplayCounter(self, gpu: Mapping[str, Any]) -> int:
        return int(self._get(gpu, "replays"))

    def nvmlDeviceGetPcieThroughput(self, gpu: Mapping[str, Any], counter: int) -> int:
        return int(self._get(gpu, "throughput_kib")[counter])

    def nvmlDeviceGetEnforcedPowerLimit(self, gpu: Mapping[str, Any]) -> int:
        return int(self._get(gpu, "limit_mw"))

    def nvmlDeviceGetPowerManagementDefaultLimit(self, gpu: Mapping[str, Any]) -> int:
        return int(self._get(gpu, "default_limit_mw"))

    def nvmlDeviceGetPersistenceMode(self, gpu: Mapping[str, Any]) -> int:
        return int(self._get(gpu, "persistence"))

    def nvmlDeviceGetEccMode(self, gpu: Mapping[str, Any]) -> list[int]:
        return [self._get(gpu, "ecc")] * 2

    def nvmlDeviceGetTotalEccErrors(self, gpu: Mapping[str, Any], _kind: int, _since: int) -> int:
        return int(self._get(gpu, "ecc_errors"))

    def nvmlDeviceGetRemappedRows(self, gpu: Mapping[str, Any]) -> tuple[int, int, int, int]:
        return 3, 0, self._get(gpu, "remap_pending"), 0

    def nvmlDeviceGetPciInfo(self, gpu: Mapping[str, Any]) -> SimpleNamespace:
        return SimpleNamespace(busId=self._get(gpu, "bus"))

    def nvmlDeviceGetCpuAffinity(self, gpu: Mapping[str, Any], num_words: int) -> list[int]:
        words = self._get(gpu, "affinity_words")
        return [*words, *[0] * (num_words - len(words))]

    def nvmlDeviceGetNvLinkState(self, gpu: Mapping[str, Any], link: int) -> int:
        links = self._get(gpu, "nvlinks")
        if link >= len(links):
            raise NVMLError(self.NVML_ERROR_INVALID_ARGUMENT)
        return int(links[link] is not None)

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, gpu: Mapping[str, Any], link: int) -> int:
        return 2 if gpu["nvlinks"][link] == "switch" else 0

    def nvmlDeviceGetNvLinkRemotePciInfo(self, gpu: Mapping[str, Any], link: int) -> SimpleNamespace:
        return SimpleNamespace(busId=gpu["nvlinks"][link])

    def nvmlDeviceGetTopologyCommonAncestor(self, gpu: Mapping[str, Any], _other: Mapping[str, Any]) -> int:
        return int(self._get(gpu, "ancestor"))

    def nvmlDeviceGetPowerUsage(self, gpu: Mapping[str, Any]) -> int:
        return int(self._get(gpu, "power_mw"))

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu: Mapping[str, Any]) -> int:
        return int(self._get(gpu, "energy_mj"))

    def nvmlDeviceGetCurrentClocksEventReasons(self, gpu: Mapping[str, Any]) -> int:
        return int(self._get(gpu, "reasons"))

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: Mapping[str, Any]) -> list[SimpleNamespace]:
        held = gpu.get("held", {})
        return [SimpleNamespace(pid=pid, usedGpuMemory=held.get(pid)) for pid in self._get(gpu, "pids")]

    def nvmlDeviceGetProcessUtilization(self, gpu: Mapping[str, Any], _since: int) -> list[SimpleNamespace]:
        shares = self._get(gpu, "shares").items()
        return [SimpleNamespace(pid=pid, smUtil=share, timeStamp=7) for pid, share in shares]

    def _get(self, gpu: Mapping[str, Any], key: str) -> Any:
        if self.lost:
            raise NVMLError(self.NVML_ERROR_GPU_IS_LOST)
        if key not in gpu:
            raise NVMLError(self.NVML_ERROR_NOT_SUPPORTED)
        return gpu[key]


@pytest.fixture
def fake_nvml() -> Callable[..., FakeNvml]:
    return FakeNvml


H200 = {
    "uuid": "GPU-11111111-aaaa",
    "name": "NVIDIA H200",
    "capability": (9, 0),
    "memory": 150_000_000_000,
    "utilisation": 97,
    "clock": 1980,
    "power_mw": 650_500,
    "reasons": 0,
    "pids": [],
    "memory_clock": 3201,
    "max_clock": 1980,
    "max_memory_clock": 3201,
    "temperature": 61,
    "generation": (5, 5),
    "width": (8, 16),
    "replays": 4,
    "throughput_kib": {0: 100, 1: 2000},
    "limit_mw": 600_000,
    "default_limit_mw": 700_000,
    "persistence": 1,
    "ecc": 1,
    "ecc_errors": 0,
    "remap_pending": 1,
    "bus": "00000000:1B:00.0",
}


@pytest.fixture
def h200() -> dict[str, Any]:
    return dict(H200)
