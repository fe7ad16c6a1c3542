"""Hypervisors, as processor and firmware name them."""

from __future__ import annotations

import pytest

from dynotune.probe.facts.hypervisor import hypervisor
from dynotune.schema.facts import Unknown


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"proc/cpuinfo": "flags\t: fpu sse\n", "sys/class/dmi/id/sys_vendor": "Dell Inc."}, ""),
        ({"proc/cpuinfo": "flags\t: fpu hypervisor\n", "sys/class/dmi/id/sys_vendor": "QEMU"}, "qemu"),
        ({"proc/cpuinfo": "flags\t: fpu hypervisor\n", "sys/class/dmi/id/product_name": "KVM"}, "kvm"),
        ({"proc/cpuinfo": "flags\t: fpu hypervisor\n"}, "other"),
        ({"proc/cpuinfo": "flags\t: fpu\n", "sys/class/dmi/id/sys_vendor": "Amazon EC2"}, ""),
        ({"sys/class/dmi/id/sys_vendor": "Amazon EC2", "sys/class/dmi/id/product_name": "m6g.metal"}, ""),
        ({"sys/class/dmi/id/sys_vendor": "Amazon EC2", "sys/class/dmi/id/product_name": "m6g.large"}, "kvm"),
        ({"sys/hypervisor/type": "xen\n"}, "xen"),
        ({"proc/sys/kernel/osrelease": "5.15.90.1-microsoft-standard-WSL2"}, "wsl"),
    ],
)
def test_the_hypervisor_is_told_by_processor_and_firmware(root, files, expected):
    for name, text in files.items():
        root.write(name, text)
    assert hypervisor(root.path) == expected


def test_a_machine_that_says_nothing_may_be_virtual(root):
    assert isinstance(hypervisor(root.path), Unknown)
