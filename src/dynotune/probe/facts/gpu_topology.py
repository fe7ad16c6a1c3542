"""How the visible GPUs reach each other, in the words of `nvidia-smi topo -m`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

SWITCH = 2
"""`NVML_NVLINK_DEVICE_TYPE_SWITCH`: behind it, every GPU reaches every other."""


def topology(nvml: Any, indices: Sequence[int]) -> list[int | str]:
    """A line a pair, `0-1 NV18`; numbers are places in `indices`, as CUDA counts, not NVML's.

    `NV18` is 18 NVLinks; `PIX` one PCIe switch, `PXB` several, `PHB` the processor's bridge, `NODE` one memory
    node, `SYS` the link between processors.

    Raises:
        NVMLError: NVML does not say.
    """
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in indices]
    links = [_links(nvml, handle) for handle in handles]
    buses = [str(nvml.nvmlDeviceGetPciInfo(handle).busId).lower() for handle in handles]
    lines: list[int | str] = []
    for left, right in combinations(range(len(handles)), 2):
        direct = links[left].count(buses[right])
        num_links = direct or min(links[left].count("switch"), links[right].count("switch"))
        how = f"NV{num_links}" if num_links else _by_pcie(nvml, handles[left], handles[right])
        lines.append(f"{left}-{right} {how}")
    return lines


def _links(nvml: Any, handle: Any) -> list[str]:
    """Where each active NVLink ends: a PCI address in lower case, or `switch`."""
    ends = []
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            if nvml.nvmlDeviceGetNvLinkState(handle, link) != nvml.NVML_FEATURE_ENABLED:
                continue
            if nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link) == SWITCH:
                ends.append("switch")
            else:
                ends.append(str(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId).lower())
        except nvml.NVMLError as error:
            # A GPU without NVLink, or the end of its links.
            if error.value not in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_INVALID_ARGUMENT):
                raise
            break
    return ends


def _by_pcie(nvml: Any, left: Any, right: Any) -> str:
    names = {
        nvml.NVML_TOPOLOGY_INTERNAL: "PIX",
        nvml.NVML_TOPOLOGY_SINGLE: "PIX",
        nvml.NVML_TOPOLOGY_MULTIPLE: "PXB",
        nvml.NVML_TOPOLOGY_HOSTBRIDGE: "PHB",
        nvml.NVML_TOPOLOGY_NODE: "NODE",
        nvml.NVML_TOPOLOGY_SYSTEM: "SYS",
    }
    level = int(nvml.nvmlDeviceGetTopologyCommonAncestor(left, right))
    return names.get(level, f"level {level}")
