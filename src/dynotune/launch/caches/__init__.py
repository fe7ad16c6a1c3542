"""Find compile and kernel caches, list their contents, pack caches into a file, and unpack packs.

A pack is code from elsewhere: `unpack` checks the pack's digest, paths, and the `conditions` under which it
was made, and `unpacked_origin` keeps these beside the caches. `measure.startup` measures whether a cache
makes starts faster.
"""

from dynotune.launch.caches.contents import Place

__all__ = ["Place", "conditions", "contents", "pack", "unpack", "unpacked_origin"]
