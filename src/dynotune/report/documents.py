"""Find the layout of a document by its type. Each document is laid out in one place, for all writers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dynotune.schema.account import RunAccount
from dynotune.schema.bisection import Bisection
from dynotune.schema.comparison import Comparison
from dynotune.schema.diagnosis import Diagnosis, Examination, MemoryAccount
from dynotune.schema.largest import LargestValue
from dynotune.schema.precision import Precision
from dynotune.schema.running import RunningDiagnosis
from dynotune.schema.startup import Startup
from dynotune.schema.study import Study
from dynotune.schema.trace_summary import TraceDifference, TraceSummary
from dynotune.schema.watch import View

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dynotune.report.blocks import Report


def layout_of(
    document: Any,
    *,
    recipe: str = "",
    recipe_path: str = "recipe.toml",
    top: int = 5,
    costs: Mapping[str, str] | None = None,
) -> Report:
    """Lay out a document.

    Args:
        recipe: text of a study's recipe, for its page.
        recipe_path: path of a study's recipe, for the commands that use it.
        top: number of rows in the lists of a trace.
        costs: for ids of findings of an examination, why each costs time.
    """
    match document:
        case View():
            from dynotune.report import live_run

            return live_run.layout(document)
        case Comparison():
            from dynotune.report import comparison

            return comparison.layout(document)
        case Bisection():
            from dynotune.report import bisection

            return bisection.layout(document)
        case Study():
            from dynotune.report.study import layout as study

            return study.layout(document, recipe=recipe_path, recipe_text=recipe)
        case Diagnosis():
            from dynotune.report import diagnosis

            return diagnosis.layout(document)
        case RunningDiagnosis():
            from dynotune.report import running

            return running.layout(document)
        case Examination():
            from dynotune.report import doctor

            return doctor.layout(document, costs=costs or {})
        case RunAccount():
            from dynotune.report import account

            return account.layout(document)
        case Startup():
            from dynotune.report.startup import starts

            return starts.layout(document)
        case MemoryAccount():
            from dynotune.report import memory_account

            return memory_account.layout(document)
        case Precision():
            from dynotune.report import precision

            return precision.layout(document)
        case LargestValue():
            from dynotune.report import largest

            return largest.layout(document)
        case TraceSummary():
            from dynotune.report.trace import summary

            return summary.layout(document, top=top)
        case TraceDifference():
            from dynotune.report.trace import difference

            return difference.layout(document, top=top)
    raise TypeError(f"no document that has a report: {type(document).__name__}")


def on_terminal(
    document: Any,
    *,
    recipe_path: str = "recipe.toml",
    top: int = 5,
    costs: Mapping[str, str] | None = None,
    with_next: bool = True,
) -> RenderableType:
    """Show the report of a document in the terminal.

    Args:
        recipe_path, top, costs: as `layout_of`.
        with_next: whether it ends with the commands to type next, before the verdict.
    """
    from dynotune.report.terminal import shown

    report = layout_of(document, recipe_path=recipe_path, top=top, costs=costs)
    return shown(report if with_next else replace(report, use=[]))
