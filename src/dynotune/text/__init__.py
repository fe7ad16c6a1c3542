"""Numbers, times, sizes and names as people read them.

`words` has a function for each kind of value. Tables and pages are built in `report`.
"""

__all__ = ["words"]
