"""Where facts come from: the kernel's files and counters, NVML, an interpreter.

Sources read; names and units of facts are given in `probe.facts`. Throughout the room, `root` is the folder in which
`/proc`, `/sys` and `/dev` stand, and `nvml` is used in place of `pynvml`.
"""

from dynotune.probe.sources.interpreter import PYTHON

__all__ = ["PYTHON"]
