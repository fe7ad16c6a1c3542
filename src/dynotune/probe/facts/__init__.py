"""Collect facts of machine, environment and torch.

`dynotune.probe` offers the modules that most callers need. This package also offers mounts, and the kernel's
count of processes killed for lack of memory.
"""

from dynotune.probe.facts.host_memory import num_oom_kills

__all__ = ["mounts", "num_oom_kills"]
