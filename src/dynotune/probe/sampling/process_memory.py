"""Read the memory in use on a GPU, and find the memory of one process, also within a container."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from dynotune.probe.facts.gpu import QUESTIONS
from dynotune.probe.sources.nvml import answer, session, visible_in
from dynotune.schema.facts import Unknown, needed, or_unknown

MOST_OUTSIDE_BYTES = 3 << 30
"""The context, modules and libraries of one process use less than this beyond torch's allocator."""


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
    by_pid = {int(process.pid): int(process.usedGpuMemory) for process in listed if process.usedGpuMemory}
    return DeviceMemory(int(used), by_pid)


def own_bytes(
    now: DeviceMemory | Unknown, before: DeviceMemory | Unknown, pid: int, reserved_bytes: int
) -> tuple[int | Unknown, str]:
    """Return the memory (bytes) of process `pid`, and its source; "" if NVML lists the process by this id.

    A container may number processes differently. In that case the process is taken to be the process that
    NVML lists since the start, with at least the memory that its allocator reserved. If NVML lists no
    process, the growth of the device's memory in use counts.
    """
    if isinstance(now, Unknown):
        return now, ""
    # Otherwise the id belongs to a different process outside the container.
    if now.by_pid.get(pid, -1) >= reserved_bytes:
        return now.by_pid[pid], ""
    if isinstance(before, Unknown):
        why = "NVML does not list the process: outside the container it may have another process id"
        return Unknown(why), ""
    came = [size for other, size in now.by_pid.items() if other not in before.by_pid]
    found, how = came, "the memory of the process that NVML has listed since the command's start"
    if not now.by_pid:
        found, how = (
            [now.used_bytes - before.used_bytes],
            "the increase of the device's used memory since the command's start",
        )
    fitting = [size for size in found if reserved_bytes <= size <= reserved_bytes + MOST_OUTSIDE_BYTES]
    if len(fitting) == 1:
        return fitting[0], how
    return Unknown("NVML does not tell the process from others on the GPU"), ""
