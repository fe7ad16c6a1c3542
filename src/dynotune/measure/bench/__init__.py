"""The one runner of comparisons: arms take turns, in fresh processes or in blocks within one run.

`protocol` runs or resumes a comparison, `in_process` compares within one live run, and `windows` plans the window
of fresh runs. `journal` owns the document of what is being measured.

`measure.live` makes the runs, and `measure.comparison` says what they mean.
"""

from dynotune.measure.bench.journal import Journal
from dynotune.measure.bench.protocol import Interrupted

__all__ = ["Interrupted", "Journal", "in_process", "protocol", "windows"]
