"""The one runner of comparisons: arms take turns, in fresh processes or in blocks within one run.

`protocol` runs or resumes a comparison. `settle` decides it: within one run where that is valid (`in_process`), and by
fresh pairs, which `bench` makes with the window that `windows` plans. `journal` owns the document of what is measured.
`preflight` refuses what cannot be measured, before anything runs.

`measure.live` makes the runs, and `measure.comparison` says what they mean.
"""

from dynotune.measure.bench.journal import Journal
from dynotune.measure.bench.refusals import preflight
from dynotune.measure.bench.protocol import Interrupted
from dynotune.measure.bench.settle import NoPair, fresh_pairs

__all__ = ["Interrupted", "Journal", "NoPair", "fresh_pairs", "in_process", "preflight", "protocol", "windows"]
