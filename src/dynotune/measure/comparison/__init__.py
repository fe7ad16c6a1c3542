"""Two arms compared: pairs of runs in random order, their statistics and the verdict.

`protocol` runs a comparison to its end and resumes one, `stats` is the group-sequential test, `boundary` its levels,
`schedule` its looks and the order of the arms, `objective` the value of a run, `summary` the struct that is stored.

The runs themselves are `measure.live`'s. Arms are switched within one live run by `measure.live.switching`.
"""

from dynotune.measure.comparison.protocol import Interrupted
from dynotune.measure.comparison.schedule import orders
from dynotune.measure.comparison.stats import SequentialResult, judge, judge_comparison
from dynotune.measure.comparison.summary import MeasuredRun, pays_off, read_run

__all__ = [
    "Interrupted",
    "MeasuredRun",
    "SequentialResult",
    "in_process",
    "judge",
    "judge_comparison",
    "objective",
    "orders",
    "pays_off",
    "protocol",
    "read_run",
    "summary",
]
