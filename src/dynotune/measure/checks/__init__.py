"""Check whether a setting changes the results of the program.

`guard` compares losses and outputs of a candidate with the baseline's losses and outputs. `lowest_precision`
compares a command in several precisions. `noise` judges errors against a reference, and `differences` judges
results without a reference. `tolerance` states the difference that each setting may cause.
`measure.comparison` compares speed.
"""

from dynotune.measure.checks.noise import NO_WORSE
from dynotune.measure.checks.onnx_runtime import check_onnx
from dynotune.measure.checks.tolerance import guarded, rounding

__all__ = ["NO_WORSE", "check_onnx", "guard", "guarded", "lowest_precision", "rounding"]
