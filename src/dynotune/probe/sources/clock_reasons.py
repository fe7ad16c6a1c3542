"""Why a GPU's clock is where it is: the bits of NVML's event reasons, and our names for them.

Source: https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html
"""

from __future__ import annotations

from typing import Any

GPU_IDLE = 0x1
APPLICATIONS_CLOCKS = 0x2
SW_POWER_CAP = 0x4
HW_SLOWDOWN = 0x8
SYNC_BOOST = 0x10
SW_THERMAL = 0x20
HW_THERMAL = 0x40
HW_POWER_BRAKE = 0x80
DISPLAY = 0x100

NAMES = {
    GPU_IDLE: "gpu-idle",
    APPLICATIONS_CLOCKS: "applications-clocks",
    SW_POWER_CAP: "sw-power-cap",
    HW_SLOWDOWN: "hw-slowdown",
    SYNC_BOOST: "sync-boost",
    SW_THERMAL: "sw-thermal",
    HW_THERMAL: "hw-thermal",
    HW_POWER_BRAKE: "hw-power-brake",
    DISPLAY: "display",
}


def names(mask: int) -> list[str]:
    """Names of the bits that are set; one that NVML added since is named by its value."""
    known = [name for bit, name in NAMES.items() if mask & bit]
    unnamed = mask & ~sum(NAMES)
    return [*known, *([f"reason-{unnamed:#x}"] if unnamed else [])]


def ask(nvml: Any, handle: Any) -> int:
    """The mask of one GPU now. Raises NVMLError: NVML does not say."""
    try:
        return int(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    except nvml.NVMLError as error:
        if error.value != nvml.NVML_ERROR_FUNCTION_NOT_FOUND:
            raise
        # The same mask by its name in drivers before 535.
        return int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
