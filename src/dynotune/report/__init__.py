"""Render schema objects as text.

This room renders diagnoses, also of programs that run already (`running`), examinations, recipes, comparisons
and device memory; `study/` renders a study for the terminal and `page/` as a page, `trace/` recorded traces,
`startup/` timed starts and caches. `catalogue` renders knobs, `claims` advice, `explanation` a finding and
its advice; `export` writes settings for shells, containers and administrators; `layout` builds tables.

No report decides anything: a verdict is shown as it was found, and an unknown value is called unknown. `text`
formats numbers. The room imports its modules late, because parsing a command line does not need rich.
"""

from typing import TYPE_CHECKING

from dynotune.lazy_face import lazy_face

if TYPE_CHECKING:
    from dynotune.report.comparison import comparison_table
    from dynotune.report.diagnosis import diagnosis_report
    from dynotune.report.doctor import examination_report
    from dynotune.report.explanation import explanation_report
    from dynotune.report.memory_account import memory_report
    from dynotune.report.plain_console import as_html, as_text, console
    from dynotune.report.precision import precision_report
    from dynotune.report.progress import Progress
    from dynotune.report.recipe import recipe_report, verification_report
    from dynotune.report.running import running_report

__all__ = [
    "Progress",
    "as_html",
    "as_text",
    "catalogue",
    "claims",
    "comparison_table",
    "console",
    "diagnosis_report",
    "examination_report",
    "explanation_report",
    "export",
    "layout",
    "loudness",
    "memory_report",
    "precision_report",
    "recipe_report",
    "running_report",
    "startup",
    "study",
    "trace",
    "verification_report",
]

_HOMES = {
    "comparison": "comparison_table",
    "progress": "Progress",
    "plain_console": "as_html as_text console",
    "diagnosis": "diagnosis_report",
    "doctor": "examination_report",
    "explanation": "explanation_report",
    "memory_account": "memory_report",
    "precision": "precision_report",
    "recipe": "recipe_report verification_report",
    "running": "running_report",
}

__getattr__ = lazy_face(__name__, _HOMES)
