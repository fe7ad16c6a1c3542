"""Numbers, times, sizes and names as people read them.

`words` has a function for each kind of value, `exit_codes` says how a process ended, and `reasons` has the sentences of
reasons that are codes. `report` builds tables and
pages.
"""

__all__ = ["exit_codes", "reasons", "words"]
