"""Read snapshots of torch's caching allocator, with every memory block of the recorded history.

The files are untrusted pickles; `plain_pickle` reads them without running code in the files.
"""

from dynotune.trace.snapshot.lives import Life, Lives, Range
from dynotune.trace.snapshot.reading import load_snapshot

__all__ = ["Life", "Lives", "Range", "load_snapshot"]
