"""Whether runs of a command may go side by side, when nothing in them is timed."""

from __future__ import annotations

from dynotune import probe
from dynotune.measure.live.outcome import Outcome
from dynotune.schema.run import RunSpec

MOST_AT_ONCE, CORES_EACH = 6, 2
CONTEXT_BYTES = 2 << 30
"""For a process on a GPU, beside its tensors: its context, kernels and workspaces."""
GROWTH = 4
"""How much larger tensors are in float64 than in the program's own type, at most."""


def is_alone(outcome: Outcome) -> bool:
    """Tell whether another run beside this one could not have met it: one GPU, and no file of the user's written."""
    run = outcome.run
    num_devices = max((process.num_devices or 0 for process in run.processes), default=0)
    return num_devices <= 1 and (run.sandbox == "overlay" or not run.changed_files)


def room(run: RunSpec, peak_bytes: int, host_bytes: int) -> int:
    """Return how many runs fit at once into the cores and the memory that are free now; 1 without a GPU.

    Args:
        peak_bytes: of device memory that one run needs; `host_bytes` of the host's.
    """
    if not peak_bytes or run.caches == "cold":
        return 1  # on the CPU they would share what each of them is waiting for
    facts = probe.gpu.facts(run.env)
    sizes = [(facts[name], facts.get(name.replace("memory", "memory_used"))) for name in facts if _is_size(name)]
    left = [size - used for size, used in sizes if isinstance(size, int) and isinstance(used, int)]
    device = min(left, default=0) // (GROWTH * peak_bytes + CONTEXT_BYTES)
    host = probe.host_memory.available_bytes() // max(1, 2 * host_bytes)
    return max(1, min(MOST_AT_ONCE, len(probe.host.usable_cpus()) // CORES_EACH, device, host))


def _is_size(fact: str) -> bool:
    return fact.endswith(".memory_bytes") and fact.startswith("gpu")
