"""The same comparisons as for the reports."""

from ..report.conftest import comparison  # noqa: F401
