"""Readers of recorded traces: files of torch.profiler and Nsight Systems become `Timeline`s.

`reading` chooses the reader of a file by its content; `kineto` reads torch.profiler's JSON, and `nsys` the
SQLite files of Nsight Systems. A reader fills `columns`.

The files are untrusted: sizes are bounded, and nothing in them is executed. Readers do not interpret a
timeline.
"""

from dynotune.trace.readers.reading import read_traces

__all__ = ["read_traces"]
