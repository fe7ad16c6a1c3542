"""The what-if engine: replay a timeline as it would have been without a cause, or under another condition.

This room does not check predictions: only a comparison of runs does.
"""

from dynotune.trace.what_if.engine import DEVICE, HOST, retimed, savings
from dynotune.trace.what_if.settings import predictions

__all__ = ["DEVICE", "HOST", "predictions", "retimed", "savings"]
