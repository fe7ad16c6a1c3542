"""What time was lost to: rules on facts, and their ranking.

Other rooms have causes from `trace.summarise`. Advice on a cause is a rule of `doctor`.
"""

__all__ = []
