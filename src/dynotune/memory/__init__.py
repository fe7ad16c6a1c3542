"""Device memory: what a recorded step held, by whom, and what other batches would hold.

`accounting` joins a replayed snapshot with the owners that the agent told of and with what the driver counts, into
terms that add up. `fitting` predicts other batches from two that were run, by the allocations of both (`sequence`) in a
model of the allocator, and says what fits on a card, and how many processes do. `offline` predicts from what a program
allocated on a pretended GPU. `oom` reads torch's message of an allocation that failed.

Nothing is run and no device is asked here: `diagnose` records, `trace.snapshot` reads snapshots, and `doctor` says what
would save memory. The face imports late, because every run may fail for want of memory, and few do.
"""

from typing import TYPE_CHECKING

from dynotune.lazy_face import lazy_face

if TYPE_CHECKING:
    from dynotune.memory.accounting import account, of_snapshot
    from dynotune.memory.allocator import AllocatorSettings, CachingAllocator, OutOfMemory
    from dynotune.memory.constants import gpu
    from dynotune.memory.fitting import MARGIN_SHARE, capacity, card_bytes, processes
    from dynotune.memory.offline import Allocations, largest_batch, predict, read
    from dynotune.memory.oom import explained

__all__ = [
    "MARGIN_SHARE",
    "Allocations",
    "AllocatorSettings",
    "CachingAllocator",
    "OutOfMemory",
    "account",
    "capacity",
    "card_bytes",
    "explained",
    "gpu",
    "largest_batch",
    "of_snapshot",
    "predict",
    "processes",
    "read",
]

_MODULES = {
    "accounting": ("account", "of_snapshot"),
    "allocator": ("AllocatorSettings", "CachingAllocator", "OutOfMemory"),
    "constants": ("gpu",),
    "fitting": ("MARGIN_SHARE", "capacity", "card_bytes", "processes"),
    "offline": ("Allocations", "largest_batch", "predict", "read"),
    "oom": ("explained",),
}
__getattr__ = lazy_face(__name__, {name: module for module, names in _MODULES.items() for name in names})
