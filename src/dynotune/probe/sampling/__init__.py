"""Take samples of the machine during a run, and compute facts of a time window from the samples.

Other rooms import `Sampler`, `judge` and `energy` from `dynotune.probe`.
"""

__all__ = []
