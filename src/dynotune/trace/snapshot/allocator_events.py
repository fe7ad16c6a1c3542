"""The events that torch's caching allocator recorded in a snapshot's history."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

ADDRESS_MASK = (1 << 62) - 1
"""Some devices' addresses have the highest bits set; without these bits they fit int64 and stay distinct."""
BLOCKS = {"alloc": 1, "free_completed": -1}
SEGMENTS = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}


class Event(msgspec.Struct):
    """An allocator event, an entry of `device_traces` in the snapshot; an "oom" event has no address."""

    action: str
    size: Annotated[int, Meta(ge=0)] = 0
    addr: int | None = None
    frames: Any = None
