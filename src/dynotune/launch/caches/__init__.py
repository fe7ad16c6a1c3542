"""Find compile and kernel caches, list their contents, pack them and unpack them.

A pack is code from elsewhere: `unpack` checks its digest, its paths and the `conditions` that it was made under.
`measure.startup` measures whether a cache makes starts faster.
"""

from dynotune.launch.caches.contents import Place

__all__ = ["Place", "conditions", "contents", "pack", "unpack"]
