"""Where facts come from: the kernel's files and counters, NVML, an interpreter."""
