"""Which hypervisor we run under, from what the firmware and the kernel say."""

from __future__ import annotations

import re
from pathlib import Path

from dynotune.probe.sources import kernel_files
from dynotune.schema.facts import Unknown

# What a hypervisor writes into the firmware tables, as vendor or product.
BY_FIRMWARE = {
    "vmware": "vmware",
    "virtualbox": "virtualbox",
    "innotek": "virtualbox",
    "virtual machine": "hyper-v",
    "parallels": "parallels",
    "google compute engine": "kvm",
    "amazon ec2": "kvm",
    "openstack": "kvm",
    "kvm": "kvm",
    "qemu": "qemu",
    "bochs": "qemu",
    "bhyve": "bhyve",
    "xen": "xen",
}


def hypervisor(root: Path = Path("/")) -> str | Unknown:
    """`kvm`, `vmware`, `xen`, …; `other` where only its presence shows; empty on a machine of its own."""
    release = kernel_files.text(root, "proc/sys/kernel/osrelease")
    if isinstance(release, str) and "microsoft" in release.lower():
        return "wsl"
    kind = kernel_files.text(root, "sys/hypervisor/type")
    if isinstance(kind, str) and kind:
        return kind
    flags = _flags(root)
    firmware = " ".join(
        found.lower()
        for name in ("sys_vendor", "product_name")
        if isinstance(found := kernel_files.text(root, f"sys/class/dmi/id/{name}"), str)
    )
    # A cloud's bare machine carries the same vendor; the processor's flag does not lie.
    if flags is not None and "hypervisor" not in flags:
        return ""
    for word, name in BY_FIRMWARE.items():
        if word in firmware and ".metal" not in firmware:
            return name
    if flags is not None:
        return "other"
    return "" if firmware else Unknown("neither the processor nor the firmware says whether this machine is virtual")


def _flags(root: Path) -> set[str] | None:
    """The first processor's flags; None where the kernel lists none, or such as cannot tell (Arm)."""
    cpuinfo = kernel_files.text(root, "proc/cpuinfo")
    found = re.search(r"^flags\s*:(.*)$", cpuinfo, re.MULTILINE) if isinstance(cpuinfo, str) else None
    return set(found[1].split()) if found else None
