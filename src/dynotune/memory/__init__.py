"""Account for device memory: bytes of each memory term in the recorded steps, and predicted bytes for other
batches.

`accounting` combines a replayed snapshot, the tensors' owners that the agent reported, and the driver's count
into memory terms that add up. `sequence` replays allocations in a model of the `allocator`: those of a
pretended GPU to place them, those of two batches to predict another. `fitting` derives which batches fit on a
card. `constants` has figures that only measurements give.

This room runs nothing and asks no device: `diagnose` records, `trace.snapshot` reads snapshots, and `doctor`
advises how to save memory.
"""

from dynotune.memory.accounting import account, of_snapshot
from dynotune.memory.allocator import AllocatorSettings
from dynotune.memory.constants import gpu, outside
from dynotune.memory.fitting import capacity
from dynotune.memory.sequence import MOST_EVENTS, placed

__all__ = [
    "MOST_EVENTS",
    "AllocatorSettings",
    "account",
    "capacity",
    "gpu",
    "of_snapshot",
    "outside",
    "placed",
]
