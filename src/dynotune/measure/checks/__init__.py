"""Whether a setting leaves the results of the program what they were.

`guard` compares losses and outputs of an arm with the baseline's, `boundary` precisions of a command with each other.
`noise` judges errors against a reference,
`differences` has the arithmetic of what is without one, `tolerance` what each setting may change. Speed is compared in
`measure.comparison`.
"""

from dynotune.measure.checks.noise import NO_WORSE, judge
from dynotune.measure.checks.tolerance import guarded, rounding

__all__ = ["NO_WORSE", "boundary", "guard", "guarded", "judge", "rounding"]
