"""Name the reasons for a GPU's present clock: the bits of NVML's clock event reasons.

Source: https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html
"""

from typing import Any

HW_SLOWDOWN, SYNC_BOOST, HW_THERMAL, HW_POWER_BRAKE = 0x8, 0x10, 0x40, 0x80

NAMES = {
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


def names(mask: int) -> list[str]:
    """Return the names of the set bits; a bit that NVML added later is named by its value."""
    known = [name for bit, name in NAMES.items() if mask & bit]
    unnamed = mask & ~sum(NAMES)
    return [*known, *([f"reason-{unnamed:#x}"] if unnamed else [])]


def ask(nvml: Any, handle: Any) -> int:
    """Return the present bit mask of one GPU. Raises NVMLError: NVML does not report the mask."""
    try:
        return int(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    except nvml.NVMLError as error:
        if error.value != nvml.NVML_ERROR_FUNCTION_NOT_FOUND:
            raise
        # In drivers before 535 the same mask has another name.
        return int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
