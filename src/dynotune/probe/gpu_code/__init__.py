"""GPU code in files, and which GPU runs it.

`code_places` finds the files that a command loads, `device_code` reads which architectures they hold, `gpu_archs` says
which GPU runs which. elftools and NVML are imported by those who use them.
"""

__all__ = ["code_places", "device_code", "gpu_archs"]
