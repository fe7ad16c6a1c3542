"""Programs with faults of kernels, precision, compilation, many processes and the environment; the clean programs."""

from .fault import Fault

FAULTS: tuple[Fault, ...] = ()
PAIRS: tuple[Fault, ...] = ()
CLEAN: tuple[Fault, ...] = ()
