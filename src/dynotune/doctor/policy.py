"""Thresholds of the rules, each with its reason, and how much a finding weighs."""

from __future__ import annotations

from dynotune.schema.diagnosis import Severity

HIGH_SHARE = 0.10
"""Of a step: more than runs differ by on a quiet machine, and worth an hour of anyone's time."""
MEDIUM_SHARE = 0.03
"""Below it `compare` needs more than its twelve pairs to tell the gain from noise of 2%."""
LEAST_SHARE = 0.01
"""What costs less is not reported: the trace itself does not tell it apart from chance."""


def severity(share: float) -> Severity:
    """By the share of a step that a finding costs."""
    return "high" if share >= HIGH_SHARE else "medium" if share >= MEDIUM_SHARE else "low"


# jitter
SLOW_STEP = 1.5
"""Times a usual step: the slowest hundredth of steps is by 10 to 30% longer on any quiet machine."""
