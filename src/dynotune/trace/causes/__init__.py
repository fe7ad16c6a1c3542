"""Causes of lost time: rules on facts, and their ranking.

Other rooms get causes from `trace.summarise`. Advice on a cause is a rule of `doctor`.
"""

__all__ = []
