"""Numbers, times, sizes and names as people read them.

`words` has a function for each kind of value. `report` builds tables and pages.
"""

__all__ = ["words"]
