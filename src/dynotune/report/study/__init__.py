"""A study in the terminal, and its rows in order for terminal and page."""

from typing import TYPE_CHECKING

from dynotune.lazy_face import lazy_face

if TYPE_CHECKING:
    from dynotune.report.study.header import spent_s
    from dynotune.report.study.rows import long_time
    from dynotune.report.study.summary import study_report

__all__ = ["long_time", "spent_s", "study_report"]

__getattr__ = lazy_face(__name__, {"rows": "long_time", "header": "spent_s", "summary": "study_report"})
