"""Where facts come from: the kernel's files and counters, NVML, an interpreter.

Sources read; names and units of facts are given in `probe.facts`.
"""

from dynotune.probe.sources.interpreter import PYTHON

__all__ = ["PYTHON"]
