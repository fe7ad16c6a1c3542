"""The what-if engine: replay a timeline as it would have been without a cause, or under another condition.

Only a comparison of runs checks a prediction, never this room.
"""

from dynotune.trace.what_if.engine import DEVICE, HOST, retimed, savings
from dynotune.trace.what_if.settings import predictions

__all__ = ["DEVICE", "HOST", "predictions", "retimed", "savings"]
