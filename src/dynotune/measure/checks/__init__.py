"""Whether a setting leaves the results of the program what they were.

`guard` compares losses and outputs of an arm with the baseline's, `differences` has the arithmetic, `tolerance` what
each setting may change. Speed is compared in `measure.comparison`.
"""

from dynotune.measure.checks.tolerance import guarded

__all__ = ["guard", "guarded"]
