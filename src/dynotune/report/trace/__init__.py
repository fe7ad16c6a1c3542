"""Traces and their differences in the terminal."""

from typing import TYPE_CHECKING

from dynotune.lazy_face import lazy_face

if TYPE_CHECKING:
    from dynotune.report.trace.difference import difference_report
    from dynotune.report.trace.summary import trace_report

__all__ = ["difference_report", "trace_report"]

__getattr__ = lazy_face(__name__, {"difference": "difference_report", "summary": "trace_report"})
