"""Show a study in the terminal, and provide its rows for terminal and page."""

from dynotune.report.study.header import spent_s
from dynotune.report.study.rows import long_time
from dynotune.report.study.summary import study_report

__all__ = ["long_time", "spent_s", "study_report"]
