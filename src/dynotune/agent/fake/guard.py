"""Lets torch's autograd work with tensors that say they are on CUDA, in a process that has no such device.

A CUDA build of torch has a guard for this case (`torch._C._ensureCUDADeviceGuardSet`), which FakeTensorMode uses. It
takes the place of a guard that counts no devices, and a build for the CPU has none at all. So one is put there first.
Backward asks for the accelerator, and whether the device has a context: the build says that it has one and it has not.
"""

from __future__ import annotations

import ctypes
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_CUDA = 1
_IS_BUILT, _HAS_PRIMARY_CONTEXT = 2, 4  # in the table of at::AcceleratorHooksInterface, after its two destructors
_TABLE_ENTRIES = 120


class CannotPretend(RuntimeError):
    """This torch cannot be run with a device that is not there."""


def install(torch: Any) -> None:
    """Make CUDA tensors without memory usable.

    Raises:
        CannotPretend: this version or build of torch cannot do it.
    """
    if not hasattr(torch._C, "_ensureCUDADeviceGuardSet"):
        raise CannotPretend("torch %s has no guard for a device that is not there; 2.9 has" % torch.__version__)
    try:
        _replace_tables(torch)
        torch._C._ensureCUDADeviceGuardSet()
        torch._C._set_only_lift_cpu_tensors(True)  # `torch.tensor(…, device="cuda")` makes them here and moves them
        found = torch._C._accelerator_getAccelerator()
    except (OSError, ValueError, AttributeError, RuntimeError) as error:
        raise CannotPretend("torch %s does not let itself be changed: %s" % (torch.__version__, error)) from error
    if found.type != "cuda":
        raise CannotPretend("torch %s takes %s for its accelerator" % (torch.__version__, found))


def _replace_tables(torch: Any) -> None:
    folder = os.path.join(os.path.dirname(torch.__file__), "lib")
    c10 = ctypes.CDLL(os.path.join(folder, "libc10.so"))
    guards = (ctypes.c_void_p * (_CUDA + 1)).in_dll(c10, "_ZN3c104impl26device_guard_impl_registryE")
    get = ctypes.CDLL(os.path.join(folder, "libtorch_cpu.so"))._ZN2at6detail12getCUDAHooksEv
    get.restype = ctypes.c_void_p
    pointer = ctypes.c_void_p.from_address(get())
    if pointer.value is None:
        raise ValueError("it has no hooks")
    head = 2 * ctypes.sizeof(ctypes.c_void_p)  # offset and type information, before the first function
    hooks = (ctypes.c_void_p * _TABLE_ENTRIES)()
    ctypes.memmove(hooks, pointer.value - head, ctypes.sizeof(hooks))
    # Functions of C that return 0 or 1 whatever they are given, for the tables are used until the process is gone.
    no = ctypes.cast(ctypes.CDLL(None).sched_yield, ctypes.c_void_p).value
    hooks[2 + _IS_BUILT] = ctypes.cast(ctypes.pythonapi.Py_IsInitialized, ctypes.c_void_p).value
    hooks[2 + _HAS_PRIMARY_CONTEXT] = no
    _keep(hooks)
    if guards[_CUDA] is None:
        table = (ctypes.c_void_p * 64)(*[no] * 64)  # whatever it is asked, it has no device
        guard = (ctypes.c_void_p * 1)(ctypes.addressof(table))
        _keep(table)
        _keep(guard)
        guards[_CUDA] = ctypes.addressof(guard)
    pointer.value = ctypes.addressof(hooks) + head


def _keep(memory: Any) -> None:
    """C++ holds a pointer to it, and outlives Python."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))
