"""Report the state of the GPUs: link, clocks, power, health, processes that compute on them, and topology."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dynotune.probe.facts.gpu_topology import topology
from dynotune.probe.facts.host import parse_cpu_list
from dynotune.probe.sources import container
from dynotune.probe.sources import nvml as nvml_facts
from dynotune.probe.sources.kernel_files import process_name
from dynotune.probe.sources.nvml import NvmlUnavailable, answer
from dynotune.schema.facts import Facts, Unknown, Value, needed, or_unknown

Question = Callable[[Any, Any], Value]

NAME_UNKNOWN = "(name unknown)"

# Room for 4096 processors, more than any kernel supports.
NUM_AFFINITY_WORDS = 64
QUESTIONS: dict[str, Question] = {
    **nvml_facts.IDENTITY,
    "pcie_generation": lambda nvml, gpu: int(nvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu)),
    "pcie_max_generation": lambda nvml, gpu: int(nvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu)),
    "pcie_width": lambda nvml, gpu: int(nvml.nvmlDeviceGetCurrPcieLinkWidth(gpu)),
    "pcie_max_width": lambda nvml, gpu: int(nvml.nvmlDeviceGetMaxPcieLinkWidth(gpu)),
    "pcie_replays": lambda nvml, gpu: int(nvml.nvmlDeviceGetPcieReplayCounter(gpu)),
    "sm_clock_mhz": lambda nvml, gpu: int(nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM)),
    "max_sm_clock_mhz": lambda nvml, gpu: int(nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_SM)),
    "memory_clock_mhz": lambda nvml, gpu: int(nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM)),
    "max_memory_clock_mhz": lambda nvml, gpu: int(nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_MEM)),
    "clock_reasons": lambda nvml, gpu: [*nvml_facts.reason_names(nvml_facts.clock_reasons(nvml, gpu))],
    "power_w": lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
    "power_limit_w": lambda nvml, gpu: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000,
    "default_power_limit_w": lambda nvml, gpu: nvml.nvmlDeviceGetPowerManagementDefaultLimit(gpu) / 1000,
    "temperature_c": lambda nvml, gpu: int(nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)),
    "persistence": lambda nvml, gpu: bool(
        nvml.nvmlDeviceGetPersistenceMode(gpu) == nvml.NVML_FEATURE_ENABLED
    ),
    "ecc": lambda nvml, gpu: nvml_facts.has_mode(
        nvml, nvml.nvmlDeviceGetEccMode, gpu, nvml.NVML_FEATURE_ENABLED
    ),
    "ecc_uncorrected": lambda nvml, gpu: int(
        nvml.nvmlDeviceGetTotalEccErrors(gpu, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
    ),
    "remapped_rows_pending": lambda nvml, gpu: bool(nvml.nvmlDeviceGetRemappedRows(gpu)[2]),
    "mig": nvml_facts.in_mig_mode,
    "utilisation_percent": lambda nvml, gpu: int(nvml.nvmlDeviceGetUtilizationRates(gpu).gpu),
    "memory_used_bytes": lambda nvml, gpu: int(nvml.nvmlDeviceGetMemoryInfo(gpu).used),
}
"""Facts that NVML gives about one GPU. Each is asked separately, so a refusal affects only that fact.

Source: https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html
"""

DEVICE_NAMES = ("index", *QUESTIONS, "processes", "num_processes", "numa_node", "cpu_affinity")

NAMES = (
    "gpu.count",
    "gpu.driver",
    "gpu.cuda_driver",
    "gpu.pids_comparable",
    *(f"gpu.{name}" for name in DEVICE_NAMES),
)
"""Facts that are always present, known or Unknown; `gpu.nvml_indices` and `gpu.topology` are present only if
known."""


def facts(
    env: Mapping[str, str], *, nvml: Any = None, dev: Path = Path("/dev"), root: Path = Path("/")
) -> Facts:
    """Return facts `gpu.*`: the facts of `nvml.facts` and the present state; further visible GPUs as
    `gpu1.*`, ….

    An idle GPU slows down its link and clocks, so the facts describe the present state, not the GPU's
    capability.

    `env`: environment that the command will have.
    """
    comparable = container.in_initial_pid_namespace(root)
    found: Facts = {"gpu.pids_comparable": comparable}
    try:
        # Use one session for all questions: without persistence mode, the driver starts anew for each
        # session.
        with nvml_facts.session(nvml) as library:
            found |= nvml_facts.facts(env, nvml=library, dev=dev)
            found["gpu.cuda_driver"] = answer(library, lambda: nvml_facts.cuda_driver(library))
            visible = nvml_facts.visible_in(library, env)
            if isinstance(visible, Unknown) or not visible:
                why = visible if isinstance(visible, Unknown) else Unknown("no GPU is visible")
                # Report every GPU here, because it is unknown which ones the command would see.
                mig = answer(
                    library,
                    lambda: any(
                        nvml_facts.in_mig_mode(library, handle) for handle in nvml_facts.handles_of(library)
                    ),
                )
                return dict.fromkeys(NAMES, why) | found | {"gpu.mig": mig}
            for place, index in enumerate(visible):
                found |= _one(library, index, f"gpu{place or ''}", comparable=comparable, root=root)
            if len(visible) > 1:
                found["gpu.topology"] = answer(library, lambda: topology(library, visible))
    except NvmlUnavailable as unavailable:
        found |= nvml_facts.facts(env, nvml=nvml, dev=dev)
        why = Unknown("there is no GPU" if found["gpu.count"] == 0 else unavailable.reason)
        return dict.fromkeys(NAMES, why) | found
    return found


def _one(nvml: Any, index: int, prefix: str, *, comparable: bool, root: Path) -> Facts:
    found: Facts = {f"{prefix}.index": index}
    handle = answer(nvml, lambda: nvml.nvmlDeviceGetHandleByIndex(index))
    if isinstance(handle, Unknown):
        return dict.fromkeys((f"{prefix}.{name}" for name in DEVICE_NAMES), handle) | found
    for name, question in QUESTIONS.items():
        found[f"{prefix}.{name}"] = answer(nvml, lambda question=question: question(nvml, handle))  # type: ignore[misc]
    processes = _processes(nvml, handle, comparable=comparable, root=root)
    found[f"{prefix}.processes"] = processes
    found[f"{prefix}.num_processes"] = processes if isinstance(processes, Unknown) else len(processes)
    bus = answer(nvml, lambda: _sysfs_name(str(nvml.nvmlDeviceGetPciInfo(handle).busId)))
    folder = bus if isinstance(bus, Unknown) else root / "sys/bus/pci/devices" / bus
    found[f"{prefix}.numa_node"] = _numa_node(folder, root)
    found[f"{prefix}.cpu_affinity"] = _cpu_affinity(nvml, handle, folder)
    return found


@or_unknown()
def _processes(nvml: Any, handle: Any, *, comparable: bool, root: Path) -> list[int | str] | Unknown:
    """List processes with a compute context as `PID NAME`; dynotune itself has none."""
    running = needed(answer(nvml, lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle)))
    if not running and not comparable:
        # Drivers differ: some give the host's process ids, some leave out processes of other containers.
        return Unknown("the driver may hide processes outside this container")
    pids = sorted({int(process.pid) for process in running})
    # Here another process may have the same id.
    return [f"{pid} {(process_name(pid, root) if comparable else None) or NAME_UNKNOWN}" for pid in pids]


def _sysfs_name(bus_id: str) -> str:
    """Return the name in `/sys`: NVML writes the PCI domain with eight digits, and the kernel with four."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


@or_unknown()
def _numa_node(folder: Path | Unknown, root: Path) -> int | Unknown:
    try:
        node = int((needed(folder) / "numa_node").read_text())
        nodes = parse_cpu_list((root / "sys/devices/system/node/has_cpu").read_text())
    except (OSError, ValueError):
        return Unknown("/sys does not say on which memory node this GPU is")
    if node >= 0:
        return node
    return (
        min(nodes)
        if len(nodes) == 1
        else Unknown("the firmware does not say on which memory node this GPU is")
    )


@or_unknown()
def _cpu_affinity(nvml: Any, handle: Any, folder: Path | Unknown) -> list[int | str]:
    """Return the processors near the GPU as `/sys` lists them, or else as NVML lists them."""
    if not isinstance(folder, Unknown):
        try:
            listed = parse_cpu_list((folder / "local_cpulist").read_text())
        except (OSError, ValueError):
            listed = set()
        if listed:
            return [*sorted(listed)]
    words = needed(answer(nvml, lambda: list(nvml.nvmlDeviceGetCpuAffinity(handle, NUM_AFFINITY_WORDS))))
    return [64 * at + bit for at, word in enumerate(words) for bit in range(64) if word >> bit & 1]
