"""Account for the whole time of a run: one table that sums to the wall clock.

The agent records spans and samples the main thread's stack. `processes` tells which process a moment belongs
to, `stacks` what a stack means (`stacks.toml`), `rows` gives each moment to one row, and `whole_run` makes
the document. `captured_run` runs a command for it, `energy` reads the GPUs' counters. The spans are those of
`measure.startup`, which compares starts with cold and warm caches.
"""

from dynotune.measure.account.captured_run import accounted
from dynotune.measure.account.energy import EnergyMeter
from dynotune.measure.account.whole_run import account, account_of_run

__all__ = ["EnergyMeter", "account", "account_of_run", "accounted"]
