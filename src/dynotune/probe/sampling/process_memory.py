"""What the driver counts for one process on one GPU, and what is used there in all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dynotune.probe.facts.gpu import QUESTIONS
from dynotune.probe.sources.nvml import NvmlUnavailable, answer, session, visible_in
from dynotune.schema.facts import Unknown, needed, or_unknown


@or_unknown()
def process_bytes(env: Mapping[str, str], cuda_index: int, pid: int | None, *, nvml: Any = None) -> int | Unknown:
    """Memory of process `pid`, or of all for None, on the GPU that a command under `env` numbers `cuda_index`.

    Unknown where NVML lists the process under another number, as in a container with process ids of its own.
    """
    try:
        with session(nvml) as library:
            visible = needed(visible_in(library, env))
            if cuda_index >= len(visible):
                return Unknown(f"NVML lists no GPU {cuda_index} for this command")
            return needed(answer(library, lambda: _bytes(library, visible[cuda_index], pid)))
    except NvmlUnavailable as unavailable:
        return Unknown(unavailable.reason)


def used_bytes(env: Mapping[str, str], cuda_index: int, *, nvml: Any = None) -> int | Unknown:
    """Memory in use on that GPU, by whomever."""
    return process_bytes(env, cuda_index, None, nvml=nvml)


def _bytes(nvml: Any, index: int, pid: int | None) -> int | Unknown:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    if pid is None:
        used: Any = QUESTIONS["memory_used_bytes"](nvml, handle)
        return int(used)
    own = [one.usedGpuMemory for one in nvml.nvmlDeviceGetComputeRunningProcesses(handle) if int(one.pid) == pid]
    if not own:
        return Unknown("NVML does not list the process: in a container it may have another number outside")
    return Unknown("NVML lists the process without its memory") if own[0] is None else int(own[0])
