"""What the driver counts for one process on one GPU, and what is used there in all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dynotune.probe.sources.nvml import NvmlUnavailable, answer, session, visible_in
from dynotune.schema.facts import Unknown


def process_bytes(env: Mapping[str, str], cuda_index: int, pid: int, *, nvml: Any = None) -> int | Unknown:
    """Memory of process `pid` on the GPU that a command under `env` numbers `cuda_index`.

    Unknown where NVML lists the process under another number, as in a container with process ids of its own.
    """

    def ask(library: Any, handle: Any) -> int | Unknown:
        found = answer(library, lambda: library.nvmlDeviceGetComputeRunningProcesses(handle))
        if isinstance(found, Unknown):
            return found
        own = [process.usedGpuMemory for process in found if int(process.pid) == pid]
        if not own:
            return Unknown("NVML does not list the process: in a container it may have another number outside")
        return Unknown("NVML lists the process without its memory") if own[0] is None else int(own[0])

    return _asked(env, cuda_index, ask, nvml)


def used_bytes(env: Mapping[str, str], cuda_index: int, *, nvml: Any = None) -> int | Unknown:
    """Memory in use on that GPU, by whomever."""
    return _asked(
        env,
        cuda_index,
        lambda library, handle: answer(library, lambda: int(library.nvmlDeviceGetMemoryInfo(handle).used)),
        nvml,
    )


def _asked(env: Mapping[str, str], cuda_index: int, ask: Any, nvml: Any) -> int | Unknown:
    try:
        with session(nvml) as library:
            visible = visible_in(library, env)
            if isinstance(visible, Unknown):
                return visible
            if cuda_index >= len(visible):
                return Unknown(f"NVML lists no GPU {cuda_index} for this command")
            handle = answer(library, lambda: library.nvmlDeviceGetHandleByIndex(visible[cuda_index]))
            found: int | Unknown = handle if isinstance(handle, Unknown) else ask(library, handle)
            return found
    except NvmlUnavailable as unavailable:
        return Unknown(unavailable.reason)
