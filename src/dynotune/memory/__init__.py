"""Device memory: what a recorded step held, by whom, and what other batches would hold.

`accounting` joins a replayed snapshot with the owners that the agent told of and with what the driver counts, into
terms that add up. `fitting` predicts other batches from two that were run, by the allocations of both (`sequence`) in a
model of the allocator, and says what fits on a card, and how many processes do. `oom` reads torch's
message of an allocation that failed.

Nothing is run and no device is asked here: `diagnose` records, `trace.snapshot` reads snapshots, and `doctor` says what
would save memory. The face imports late, because every run may fail for want of memory, and few do.
"""

from typing import TYPE_CHECKING

from dynotune.lazy_face import lazy_face

if TYPE_CHECKING:
    from dynotune.memory.accounting import account, of_snapshot
    from dynotune.memory.fitting import MARGIN_SHARE, capacity, card_bytes, processes
    from dynotune.memory.oom import explained

__all__ = ["MARGIN_SHARE", "account", "capacity", "card_bytes", "explained", "of_snapshot", "processes"]

_FITTING = dict.fromkeys(("MARGIN_SHARE", "capacity", "card_bytes", "processes"), "fitting")
__getattr__ = lazy_face(__name__, _FITTING | {"account": "accounting", "explained": "oom", "of_snapshot": "accounting"})
