"""Device memory: what a recorded step held, by whom, and what other batches would hold.

`accounting` joins a replayed snapshot with the owners that the agent told of and with what the driver counts, into
terms that add up. `calibrated` predicts other batches from two that were run, by the allocations of both (`sequence`)
in a model of the allocator, and says what fits on a card; `beside` says how many processes do. `oom` reads torch's
message of an allocation that failed.

Nothing is run and no device is asked here: `diagnose` records, `trace.snapshot` reads snapshots, and
`doctor` says what would save memory.
"""

from dynotune.memory.accounting import account
from dynotune.memory.beside import processes
from dynotune.memory.calibrated import MARGIN_SHARE, capacity, card_bytes, verdict
from dynotune.memory.oom import explained, found_in
from dynotune.memory.sequence import Sequence

__all__ = [
    "MARGIN_SHARE",
    "Sequence",
    "account",
    "capacity",
    "card_bytes",
    "explained",
    "found_in",
    "processes",
    "verdict",
]
