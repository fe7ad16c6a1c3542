"""Device memory: what recorded steps held, by whom, and what other batches would hold.

`accounting` joins a replayed snapshot with the owners that the agent told of and with what the driver counts, into
terms that add up. `sequence` runs allocations through a model of the `allocator`: those of a pretended GPU to find
where they would lie, those of two batches to find what another one takes. `fitting` says by that what fits on a card.
`constants` has what only measurements give. `oom` reads torch's message of a failure.

Nothing is run and no device is asked here: `diagnose` records, `trace.snapshot` reads snapshots, and `doctor` says what
would save memory. The face imports late, because every run may fail for want of memory, and few do.
"""

from typing import TYPE_CHECKING

from dynotune.lazy_face import lazy_face

if TYPE_CHECKING:
    from dynotune.memory.accounting import account, of_snapshot
    from dynotune.memory.allocator import AllocatorSettings
    from dynotune.memory.constants import gpu, outside
    from dynotune.memory.fitting import capacity
    from dynotune.memory.oom import explained
    from dynotune.memory.sequence import placed

__all__ = [
    "AllocatorSettings",
    "account",
    "capacity",
    "explained",
    "gpu",
    "of_snapshot",
    "outside",
    "placed",
]

_MODULES = {
    "accounting": ("account", "of_snapshot"),
    "allocator": ("AllocatorSettings",),
    "constants": ("gpu", "outside"),
    "fitting": ("capacity",),
    "oom": ("explained",),
    "sequence": ("placed",),
}
__getattr__ = lazy_face(__name__, {name: module for module, names in _MODULES.items() for name in names})
