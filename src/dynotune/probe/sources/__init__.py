"""Read the sources of facts: the kernel's files and counters, NVML, and an interpreter.

`probe.facts` gives names and units to the values that the sources read. In the whole room, `root` is the
folder that contains `/proc`, `/sys` and `/dev`, and `nvml` stands in for `pynvml`.
"""

from dynotune.probe.sources.interpreter import PYTHON

__all__ = ["PYTHON"]
