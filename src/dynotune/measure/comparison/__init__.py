"""Compare a candidate with the baseline: pairs of runs in random order, their statistics and the verdict.

`protocol` runs or resumes a comparison, and `pair_plan` plans how many pairs fit into its budget. `stats` is the
group-sequential test, `looks` computes the test's levels, and `schedule` sets its interim looks and the order of runs.
`launched` keeps how far answers from blocks within one process were off when launched, and widens their intervals by
it. `objective` computes the value of a run, and `summary` fills the struct that is stored.

`measure.live` makes the runs. `measure.live.switching` switches between baseline and candidates within one live run.
"""

from dynotune.measure.comparison.protocol import Interrupted
from dynotune.measure.comparison.schedule import orders
from dynotune.measure.comparison.stats import POWER_Z, SequentialResult, judge, judge_comparison
from dynotune.measure.comparison.summary import MeasuredRun, pays_off, read_run

__all__ = [
    "POWER_Z",
    "Interrupted",
    "MeasuredRun",
    "SequentialResult",
    "in_process",
    "judge",
    "judge_comparison",
    "launched",
    "objective",
    "orders",
    "pays_off",
    "protocol",
    "read_run",
    "summary",
]
