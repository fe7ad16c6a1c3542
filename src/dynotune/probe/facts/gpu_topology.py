"""Tell how each pair of GPUs is connected: by NVLink, by a PCIe switch, or through the host."""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

SWITCH = 2
"""`NVML_NVLINK_DEVICE_TYPE_SWITCH`: through a switch, every GPU reaches every other GPU."""


def topology(nvml: Any, indices: Sequence[int]) -> list[int | str]:
    """Return a line per pair of GPUs, as `nvidia-smi topo -m` does: `0-1 NV18`.

    Numbers are positions in `indices`. `NV18` means 18 NVLinks, `PIX` one PCIe switch, `PXB` several PCIe
    switches, `PHB` the processor's host bridge, `NODE` one memory node, and `SYS` the link between
    processors.

    Raises NVMLError: NVML does not report the topology.
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
    """Return the other end of each active NVLink: a PCI address in lower case, or `switch`."""
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
            # The GPU has no NVLink, or no further link.
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
