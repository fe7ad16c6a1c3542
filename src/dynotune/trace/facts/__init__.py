"""Derive the facts of a time window from a `Timeline`: steps, idle time, kernels, memory copies, places,
ranks.

Facts are counted, not judged; `trace.causes` attributes lost time. Other rooms get a trace's facts from
`trace.summarise`.
"""

__all__ = []
