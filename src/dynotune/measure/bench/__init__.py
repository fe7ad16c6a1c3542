"""The one runner of comparisons: arms take turns, in fresh processes or in blocks within one run.

`protocol` runs or resumes a comparison. `settle` decides it: within one run where that is valid
(`in_process`), and by fresh pairs. `turns` has arms take turns in fresh processes, of pairs as of starts;
`bench` makes the runs of a comparison, and `windows` plans their window. `value_runs` makes runs at values of
a placeholder. `journal` owns the document of what
is measured. `refusals` lists what cannot be measured, before anything runs.

`measure.live` makes the runs, and `measure.comparison` says what they mean.
"""

from dynotune.measure.bench.journal import Journal
from dynotune.measure.bench.protocol import Interrupted
from dynotune.measure.bench.refusals import preflight
from dynotune.measure.bench.settle import fresh_pairs
from dynotune.measure.bench.turns import NoPair, take_turns
from dynotune.measure.bench.value_runs import ValueBench

__all__ = [
    "Interrupted",
    "Journal",
    "NoPair",
    "ValueBench",
    "fresh_pairs",
    "in_process",
    "preflight",
    "protocol",
    "take_turns",
    "windows",
]
