"""Lay out documents, and show them in the terminal, as a page and as Markdown.

A document is laid out once, as a `Report` of `blocks`; `documents` finds the layout by the document's type.
Three writers show blocks: `terminal`, `page.html` and `page.markdown`. Answers that only a terminal shows are
rendered by their own modules: a recipe, knobs (`catalogue`), advice (`claims`), a
finding (`explanation`), GPU code and caches (`startup`). `export` writes settings for shells, containers and
administrators, `patch` a patch's heading, `recipe_card` one SVG; `sarif` and `speedscope` write what editors
and viewers of profiles read.

No report decides anything: a verdict is shown as it was found, and an unknown value is called unknown. `text`
formats numbers. The room imports its modules late, because parsing a command line does not need rich.
"""

from typing import TYPE_CHECKING

from dynotune.lazy_face import lazy_face

if TYPE_CHECKING:
    from dynotune.report.blocks import On, Report
    from dynotune.report.documents import layout_of, on_terminal
    from dynotune.report.doing import Doing
    from dynotune.report.explanation import explanation_report
    from dynotune.report.patch import patch_heading
    from dynotune.report.plain_console import as_html, as_text, console
    from dynotune.report.progress import Progress
    from dynotune.report.recipe import recipe_report, verification_report
    from dynotune.report.recipe_card import card
    from dynotune.report.sarif import as_sarif
    from dynotune.report.speedscope import as_speedscope
    from dynotune.report.terminal import Fitted, shown

__all__ = [
    "Doing",
    "Fitted",
    "On",
    "Progress",
    "Report",
    "as_html",
    "as_sarif",
    "as_speedscope",
    "as_text",
    "card",
    "catalogue",
    "claims",
    "console",
    "explanation_report",
    "export",
    "largest",
    "layout",
    "layout_of",
    "live_document",
    "loudness",
    "on_terminal",
    "patch_heading",
    "recipe_report",
    "shown",
    "startup",
    "study",
    "verification_report",
]

_HOMES = {
    "progress": "Progress",
    "plain_console": "as_html as_text console",
    "blocks": "On Report",
    "documents": "layout_of on_terminal",
    "doing": "Doing",
    "explanation": "explanation_report",
    "patch": "patch_heading",
    "recipe": "recipe_report verification_report",
    "recipe_card": "card",
    "sarif": "as_sarif",
    "speedscope": "as_speedscope",
    "terminal": "Fitted shown",
}

__getattr__ = lazy_face(__name__, _HOMES)
