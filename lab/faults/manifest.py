"""Every program that carries a fault, and those that carry none."""

from pathlib import Path

from .fault import Fault
from .manifest_a import CLEAN as CLEAN_A
from .manifest_a import FAULTS as FAULTS_A
from .manifest_a import PAIRS as PAIRS_A
from .manifest_b import CLEAN as CLEAN_B
from .manifest_b import FAULTS as FAULTS_B
from .manifest_b import PAIRS as PAIRS_B

__all__ = ["CLEAN", "FAULTS", "PAIRS", "PROGRAMS", "Fault"]

PROGRAMS = Path(__file__).resolve().parent / "programs"
"""The folder in which they lie."""
FAULTS = (*FAULTS_A, *FAULTS_B)
PAIRS = (*PAIRS_A, *PAIRS_B)
CLEAN = (*CLEAN_A, *CLEAN_B)
