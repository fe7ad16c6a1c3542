"""Compile and kernel caches: where they are, what they hold, packing and unpacking them.

A pack is code from elsewhere: `unpack` checks its digest, its paths and the `conditions` it was made under. Whether a
cache makes starts faster is measured in `measure.startup`.
"""

from dynotune.launch.caches.contents import Place

__all__ = ["Place", "conditions", "contents", "pack", "unpack"]
