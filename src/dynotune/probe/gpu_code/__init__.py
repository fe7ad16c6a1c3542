"""Find GPU code in files, and decide which GPU runs it.

`code_places` finds the files that a command loads, `device_code` reads their architectures, and `gpu_archs`
decides which GPU runs which architecture. Only the modules that use elftools and NVML import them.
"""

__all__ = ["code_places", "device_code", "gpu_archs"]
