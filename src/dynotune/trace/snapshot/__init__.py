"""Snapshots of torch's caching allocator: each block of their history.

The files are pickles from elsewhere; `plain_pickle` reads them without running anything in them.
"""

from dynotune.trace.snapshot.lives import Life, Lives, Range
from dynotune.trace.snapshot.reading import load_snapshot

__all__ = ["Life", "Lives", "Range", "load_snapshot"]
