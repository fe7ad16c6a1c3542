"""What pairs of runs say about a candidate and its baseline: values of runs, statistics and verdicts.

`stats` is the group-sequential test, `looks` computes the test's levels, and `schedule` sets its interim
looks and the order of runs. `launched` keeps how far answers from blocks within one process were off when
launched, and widens their intervals by it. `objective` computes the value of a run, `stream_values` those of
its streams, and `summary` the figures that are shown beside an answer.

Nothing here runs anything: `measure.live` makes runs, and `measure.bench` has arms take turns.
"""

from dynotune.measure.comparison.schedule import orders
from dynotune.measure.comparison.stats import POWER_Z, SequentialResult, judge, judge_comparison
from dynotune.measure.comparison.summary import MeasuredRun, pays_off, read_run

__all__ = [
    "POWER_Z",
    "MeasuredRun",
    "SequentialResult",
    "judge",
    "judge_comparison",
    "launched",
    "objective",
    "orders",
    "pays_off",
    "read_run",
    "stream_values",
    "summary",
]
