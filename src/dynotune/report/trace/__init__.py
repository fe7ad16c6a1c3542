"""Show traces and their differences in the terminal."""

from dynotune.report.trace.difference import difference_report
from dynotune.report.trace.summary import trace_report

__all__ = ["difference_report", "trace_report"]
