"""Recorded traces: readers into one `Timeline`, and the facts, causes and predictions that follow from it.

`readers/` parse files, `facts/` describe a window, `causes/` say what time was lost to, `what_if/` runs the timeline
again under another condition, `snapshot/` reads memory snapshots. `summarise` puts facts and causes of a trace
together, `difference` compares two summaries. `files_of` and `arrange` say what the files that a user names are.

Recording a trace is the agent's work, advice is `doctor`'s, tables are `report.trace`'s.
"""

from dynotune.trace.differences import difference
from dynotune.trace.files import arrange, as_text, files_of, is_snapshot, unreadable
from dynotune.trace.summary import summarise
from dynotune.trace.timeline import Timeline

__all__ = ["Timeline", "arrange", "as_text", "difference", "files_of", "is_snapshot", "summarise", "unreadable"]
