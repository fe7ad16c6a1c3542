"""Read facts of the GPUs that a command will see, from the driver's management library, without a CUDA
context."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from dynotune.schema.facts import Facts, Missing, Unknown, Value

T = TypeVar("T")

DEVICE_NODES = ("nvidia*", "nvhost*")
"""Device files of NVIDIA's drivers. If one exists, a missing library does not mean that there is no GPU."""

# Source: https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html
HW_SLOWDOWN, SYNC_BOOST, HW_THERMAL, HW_POWER_BRAKE = 0x8, 0x10, 0x40, 0x80
_REASONS = {
    0x1: "gpu-idle",
    0x2: "applications-clocks",
    0x4: "sw-power-cap",
    HW_SLOWDOWN: "hw-slowdown",
    SYNC_BOOST: "sync-boost",
    0x20: "sw-thermal",
    HW_THERMAL: "hw-thermal",
    HW_POWER_BRAKE: "hw-power-brake",
    0x100: "display",
}

IDENTITY: dict[str, Callable[[Any, Any], Value]] = {
    "name": lambda nvml, gpu: nvml.nvmlDeviceGetName(gpu),
    "uuid": lambda nvml, gpu: nvml.nvmlDeviceGetUUID(gpu),
    "compute_capability": lambda nvml, gpu: "{}.{}".format(*nvml.nvmlDeviceGetCudaComputeCapability(gpu)),
    "memory_bytes": lambda nvml, gpu: int(nvml.nvmlDeviceGetMemoryInfo(gpu).total),
}
"""Questions of `identity` about one GPU."""


class NvmlUnavailable(Missing):
    """Error: NVML cannot be used here. `reason`: text of the cause. `no_library`: the driver library is
    missing."""

    def __init__(self, reason: str, *, no_library: bool = False) -> None:
        super().__init__(Unknown(reason))
        self.reason = reason
        self.no_library = no_library


@contextmanager
def session(nvml: Any = None) -> Iterator[Any]:
    """Yield the `pynvml` module, initialised; shut it down at the end.

    Raises NvmlUnavailable: the library or the driver is missing, or the driver does not answer.
    """
    library = open_library(nvml)
    try:
        yield library
    finally:
        close_library(library)


def open_library(nvml: Any = None) -> Any:
    """Open NVML like `session`, without a `with` block; the caller ends it with `close_library`.

    Raises NvmlUnavailable: as for `session`.
    """
    nvml = _pynvml() if nvml is None else nvml
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        no_library = error.value == nvml.NVML_ERROR_LIBRARY_NOT_FOUND
        reason = "the driver's library is not found" if no_library else f"the driver does not answer: {error}"
        raise NvmlUnavailable(reason, no_library=no_library) from error
    return nvml


def close_library(nvml: Any) -> None:
    """Shut down NVML. After a GPU was lost NVML may refuse; the refusal is ignored, since no further call
    follows."""
    with suppress(nvml.NVMLError):
        nvml.nvmlShutdown()


def _pynvml() -> Any:
    try:
        import pynvml
    except ImportError as error:
        raise NvmlUnavailable(f"the package nvidia-ml-py is not installed: {error}") from error
    return pynvml


ORDER_UNKNOWN = Unknown(
    "the GPUs differ and CUDA numbers them by speed; CUDA_DEVICE_ORDER=PCI_BUS_ID makes their order known"
)


def answer(nvml: Any, call: Callable[[], T]) -> T | Unknown:
    """Return the result of `call`, or Unknown if NVML refuses it."""
    try:
        return call()
    except nvml.NVMLError as error:
        return Unknown(f"NVML does not say: {error}")


def facts(env: Mapping[str, str], *, nvml: Any = None, dev: Path = Path("/dev")) -> Facts:
    """Return facts `gpu.*`: count, driver, and the first GPU that a command under `env` sees.

    `gpu.count` is 0 only if no driver library and no device file exists, or if `CUDA_VISIBLE_DEVICES` hides
    all.
    """
    try:
        with session(nvml) as library:
            driver = answer(library, library.nvmlSystemGetDriverVersion)
            visible = visible_in(library, env)
            if isinstance(visible, Unknown):
                order: Facts = {"gpu.order_known": False} if visible is ORDER_UNKNOWN else {}
                return {
                    "gpu.count": visible,
                    "gpu.driver": driver,
                    **order,
                    **_device_unknown(visible.reason),
                }
            count: Facts = {"gpu.count": len(visible), "gpu.driver": driver, "gpu.nvml_indices": [*visible]}
            if not visible:
                return count | _device_unknown("no GPU is visible")
            return count | identity(library, visible[0])
    except NvmlUnavailable as unavailable:
        why = unavailable.reason
        absent = _no_gpu(unavailable, dev)
        return {
            "gpu.count": 0 if absent else Unknown(why),
            "gpu.driver": Unknown(why),
            **_device_unknown("there is no GPU" if absent else why),
        }


def visible_gpus(
    env: Mapping[str, str], *, nvml: Any = None, dev: Path = Path("/dev")
) -> list[int] | Unknown:
    """Return NVML indices of the GPUs that a command under `env` sees, in its order; empty if `gpu.count` is
    0."""
    try:
        with session(nvml) as library:
            return visible_in(library, env)
    except NvmlUnavailable as unavailable:
        return [] if _no_gpu(unavailable, dev) else Unknown(unavailable.reason)


def _no_gpu(unavailable: NvmlUnavailable, dev: Path) -> bool:
    return unavailable.no_library and not any(next(dev.glob(pattern), None) for pattern in DEVICE_NODES)


def choose(visible_devices: str, uuids: Sequence[str]) -> list[int] | Unknown:
    """Return the positions in `uuids` that `CUDA_VISIBLE_DEVICES` selects.

    The first entry that matches no GPU ends the list. A repeated entry hides all GPUs. A UUID may be
    shortened as long as it stays unique. MIG instances are not resolved.

    Source: https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html
    """
    chosen: list[int] = []
    for entry in (part.strip() for part in visible_devices.split(",")):
        if entry.startswith("MIG-"):
            return Unknown("CUDA_VISIBLE_DEVICES names a MIG instance, a slice of a GPU")
        if entry.startswith("GPU-"):
            matches = [at for at, uuid in enumerate(uuids) if uuid.startswith(entry)]
            index = matches[0] if len(matches) == 1 else -1
        else:
            number = re.match(r"[+-]?\d+", entry)
            index = int(number[0]) if number else -1
        if not 0 <= index < len(uuids):
            break
        if index in chosen:
            return []
        chosen.append(index)
    return chosen


def visible_in(nvml: Any, env: Mapping[str, str]) -> list[int] | Unknown:
    """Return the same as `visible_gpus`, within an open session."""
    try:
        handles = handles_of(nvml)
        selection = env.get("CUDA_VISIBLE_DEVICES")
        if selection is None:
            chosen: list[int] | Unknown = list(range(len(handles)))
        else:
            chosen = choose(selection, [nvml.nvmlDeviceGetUUID(handle) for handle in handles])
        names = {nvml.nvmlDeviceGetName(handle) for handle in handles}
        split = not isinstance(chosen, Unknown) and any(in_mig_mode(nvml, handles[index]) for index in chosen)
    except nvml.NVMLError as error:
        return Unknown(f"NVML does not list the GPUs: {error}")
    if isinstance(chosen, Unknown):
        return chosen
    if split:
        return Unknown("a GPU is split by MIG; the program sees a slice of it")
    by_speed = env.get("CUDA_DEVICE_ORDER", "FASTEST_FIRST") != "PCI_BUS_ID"
    by_number = selection is None or not selection.lstrip().startswith("GPU-")
    if chosen and by_speed and by_number and len(names) > 1:
        return ORDER_UNKNOWN
    return chosen


def in_mig_mode(nvml: Any, handle: Any) -> bool:
    """Tell whether the GPU is split into instances. Raises NVMLError: NVML does not report it."""
    return has_mode(nvml, nvml.nvmlDeviceGetMigMode, handle, nvml.NVML_DEVICE_MIG_ENABLE)


def has_mode(nvml: Any, ask: Callable[[Any], tuple[int, int]], handle: Any, wanted: int) -> bool:
    """Tell whether the present mode that `ask` returns is `wanted`; False for a GPU without such modes.

    Raises NVMLError: NVML does not report it.
    """
    try:
        current, _ = ask(handle)
    except nvml.NVMLError as error:
        if error.value == nvml.NVML_ERROR_NOT_SUPPORTED:
            return False
        raise
    return current == wanted


def cuda_driver(nvml: Any) -> str:
    """Return the newest CUDA version that the driver runs, `13.0`. Raises NVMLError: NVML does not report
    it."""
    version = int(nvml.nvmlSystemGetCudaDriverVersion())
    return f"{version // 1000}.{version % 1000 // 10}"


def handles_of(nvml: Any) -> list[Any]:
    """Return the handles of all GPUs, in NVML's order. Raises NVMLError: NVML does not report them."""
    return [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]


def identity(nvml: Any, index: int, prefix: str = "gpu") -> Facts:
    """Return the identity of one GPU: `gpu.name`, `gpu.uuid`, `gpu.compute_capability`,
    `gpu.memory_bytes`."""
    handle = answer(nvml, lambda: nvml.nvmlDeviceGetHandleByIndex(index))
    if isinstance(handle, Unknown):
        return _device_unknown(handle.reason, prefix)
    return {
        f"{prefix}.{name}": answer(nvml, partial(question, nvml, handle))
        for name, question in IDENTITY.items()
    }


def _device_unknown(reason: str, prefix: str = "gpu") -> Facts:
    return {f"{prefix}.{name}": Unknown(reason) for name in IDENTITY}


def reason_names(mask: int) -> list[str]:
    """Return the names of clock event reasons in the mask; a bit that NVML added later is named by its
    value."""
    known = [name for bit, name in _REASONS.items() if mask & bit]
    unnamed = mask & ~sum(_REASONS)
    return [*known, *([f"reason-{unnamed:#x}"] if unnamed else [])]


def clock_reasons(nvml: Any, handle: Any) -> int:
    """Return the reasons for one GPU's present clock, a bit mask. Raises NVMLError: NVML does not report
    it."""
    try:
        return int(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    except nvml.NVMLError as error:
        if error.value != nvml.NVML_ERROR_FUNCTION_NOT_FOUND:
            raise
        # In drivers before 535 the same mask has another name.
        return int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
