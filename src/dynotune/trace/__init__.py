"""Recorded traces: readers make a `Timeline` of a file, from which facts, causes and predictions follow.

`readers/` parse files, `facts/` describe a time window, `causes/` attribute lost time, `what_if/` replays the
timeline under another condition, `snapshot/` reads memory snapshots. `summarise` combines facts and causes of
a trace, `difference` compares two summaries. `files_of` and `arrange` interpret the files that a user names.

Elsewhere: the agent records traces, `doctor` gives advice, `report.trace` builds tables.
"""

from dynotune.trace.differences import difference
from dynotune.trace.files import arrange, as_text, files_of, is_snapshot, unreadable
from dynotune.trace.summary import summarise
from dynotune.trace.timeline import Timeline

__all__ = [
    "Timeline",
    "arrange",
    "as_text",
    "difference",
    "files_of",
    "is_snapshot",
    "summarise",
    "unreadable",
]
