"""Numbers, times, sizes and names as people read them.

`words` has a function for each kind of value, and `exit_codes` says how a process ended. `report` builds tables and
pages.
"""

__all__ = ["exit_codes", "words"]
