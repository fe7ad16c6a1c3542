"""What a `Timeline` says of a window: steps, idle time, kernels, copies, places, ranks.

Facts are counted, not judged: what time was lost to is in `trace.causes`. Other rooms ask for a trace's facts through
`trace.summarise`.
"""

__all__ = []
