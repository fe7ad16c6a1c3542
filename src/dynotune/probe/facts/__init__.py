"""Facts of machine, environment and torch.

`dynotune.probe` offers the modules that most callers need; here are mounts and the kernel's count of processes killed
for memory.
"""

from dynotune.probe.facts.host_memory import num_oom_kills

__all__ = ["mounts", "num_oom_kills"]
