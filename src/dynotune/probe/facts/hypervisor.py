"""Tell whether this machine is virtual, and which hypervisor runs it."""

from pathlib import Path

from dynotune.probe.sources import kernel_files
from dynotune.schema.facts import Unknown

# Names that a hypervisor writes into the firmware tables as vendor or product.
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
    """Name the hypervisor: `kvm`, `xen`, …

    The result is `other` if it cannot be identified, and empty on a physical machine.
    """
    if "microsoft" in kernel_files.read(root / "proc/sys/kernel/osrelease").lower():
        return "wsl"
    if kind := kernel_files.read(root / "sys/hypervisor/type").strip():
        return kind
    # None if the kernel lists no flags, or flags that cannot show a hypervisor (Arm).
    flags = kernel_files.cpu_field(root, "flags")
    names = ("sys_vendor", "product_name")
    tables = [kernel_files.read(root / "sys/class/dmi/id" / name) for name in names]
    firmware = " ".join(table.strip().lower() for table in tables).strip()
    # A cloud's bare-metal machine has the same vendor name, but the processor's flag is reliable.
    if flags is not None and "hypervisor" not in flags.split():
        return ""
    for word, name in BY_FIRMWARE.items():
        if word in firmware and ".metal" not in firmware:
            return name
    if flags is not None:
        return "other"
    if firmware:
        return ""
    return Unknown("neither the processor nor the firmware says whether this machine is virtual")
