"""The what-if engine: a timeline as it would have been without a cause, or under another condition.

A prediction is checked by a comparison, never here.
"""

from dynotune.trace.what_if.engine import DEVICE, HOST, retimed, savings
from dynotune.trace.what_if.settings import predictions

__all__ = ["DEVICE", "HOST", "predictions", "retimed", "savings"]
