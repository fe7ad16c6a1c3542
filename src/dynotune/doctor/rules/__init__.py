"""The rules, a family a module. Each family lists its rules in `RULES`; this one lists the families.

A rule is a pure function of an `ObservationView`. Arithmetic that families share lives beside this folder.
"""

from dynotune.doctor.rules import (
    algorithms,
    batches,
    code,
    compile,
    distributed,
    environment,
    environment_cuda,
    environment_debug,
    host,
    jitter,
    kernels,
    lines,
    loader,
    machine_gpu,
    machine_host,
    machine_memory,
    machine_pcie,
    memory,
    memory_terms,
    phases,
    pinning,
    precision,
    startup_compile,
    startup_cuda,
    sync,
    transfer,
    work,
)

__all__ = ["RULES"]

RULES = (
    *algorithms.RULES,
    *batches.RULES,
    *code.RULES,
    *compile.RULES,
    *distributed.RULES,
    *environment.RULES,
    *environment_cuda.RULES,
    *environment_debug.RULES,
    *host.RULES,
    *jitter.RULES,
    *kernels.RULES,
    *lines.RULES,
    *loader.RULES,
    *machine_gpu.RULES,
    *machine_host.RULES,
    *machine_memory.RULES,
    *machine_pcie.RULES,
    *memory.RULES,
    *memory_terms.RULES,
    *phases.RULES,
    *pinning.RULES,
    *precision.RULES,
    *startup_compile.RULES,
    *startup_cuda.RULES,
    *sync.RULES,
    *transfer.RULES,
    *work.RULES,
)
"""In the order in which they are asked."""
