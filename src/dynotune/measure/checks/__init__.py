"""Whether a setting leaves the results of the program what they were.

`guard` compares losses and outputs of an arm with the baseline's, `boundary` precisions of a command with each other.
`noise` judges errors against a reference,
`differences` has the arithmetic of what is without one, `tolerance` what each setting may change. Speed is compared in
`measure.comparison`.
"""

from dynotune.measure.checks.noise import NO_WORSE
from dynotune.measure.checks.onnx_runtime import check_onnx
from dynotune.measure.checks.tolerance import guarded, rounding

__all__ = ["NO_WORSE", "boundary", "check_onnx", "guard", "guarded", "rounding"]
