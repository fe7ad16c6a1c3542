"""Lay out a study, with the contents of its rows, its figures and its commands."""

from dynotune.report.study.header import spent_s
from dynotune.report.study.rows import long_time

__all__ = ["long_time", "spent_s"]
