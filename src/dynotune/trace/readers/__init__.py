"""Readers of recorded traces: files of torch.profiler and Nsight Systems become `Timeline`s.

The files are untrusted: sizes are bounded, and nothing of them is executed. What a timeline says is not asked here.
"""

from dynotune.trace.readers.reading import read_traces

__all__ = ["read_traces"]
