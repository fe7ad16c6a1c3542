"""Device memory: what recorded steps held, by whom, and what other batches would hold.

`accounting` joins a replayed snapshot with the owners that the agent told of and with what the driver counts, into
terms that add up. `sequence` runs allocations through a model of the `allocator`: those of a pretended GPU to find
where they would lie, those of two batches to find what another one takes. `fitting` says by that what fits on a card.
`constants` has what only measurements give.

Nothing is run and no device is asked here: `diagnose` records, `trace.snapshot` reads snapshots, and `doctor` says what
would save memory.
"""

from dynotune.memory.accounting import account, of_snapshot
from dynotune.memory.allocator import AllocatorSettings
from dynotune.memory.constants import gpu, outside
from dynotune.memory.fitting import capacity
from dynotune.memory.sequence import MOST_EVENTS, placed

__all__ = ["MOST_EVENTS", "AllocatorSettings", "account", "capacity", "gpu", "of_snapshot", "outside", "placed"]
