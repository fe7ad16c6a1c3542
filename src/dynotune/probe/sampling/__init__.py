"""Take samples beside a run, and compute what they show about a window.

Other rooms import `Sampler`, `judge` and `energy` from `dynotune.probe`.
"""

__all__ = []
