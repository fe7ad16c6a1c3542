"""Samples beside a run, and what they say of a window.

Other rooms have `Sampler`, `judge` and `energy` from `dynotune.probe`.
"""

__all__ = []
