"""Draw the terminal's answer of a kept diagnosis as SVG, for the README and the front page of the docs.

    python tools/pictures.py            writes docs/images/diagnose.svg

The diagnosis is a real one, kept in benchmarks/results. A test compares the picture with what the report says
now.
"""

from __future__ import annotations

import io
import json
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from dynotune.report import terminal
from dynotune.report.blocks import On
from dynotune.report.documents import layout_of
from dynotune.schema import document
from dynotune.schema.diagnosis import Diagnosis
from dynotune.text import words

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "frameworks_diagnosed_cuda.json"
PICTURE = ROOT / "docs" / "images" / "diagnose.svg"
PROGRAM = "lightning"
WIDTH, HEIGHT = 80, 24
_COLOURS = ("3c464a", "ff8f85", "6fd08c", "eab454", "7da3d4", "a596d8", "58c3cc", "e2e8ea")
_ANSI = [tuple(bytes.fromhex(colour)) for colour in _COLOURS]
THEME = TerminalTheme((22, 27, 29), (226, 232, 234), _ANSI)  # type: ignore[arg-type]
"""Colours of the pages' dark scheme."""
# rich's own form loads a typeface from the network.
FORMAT = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg"
 role="img" aria-label="What dynotune diagnose prints in a terminal">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, "SF Mono", "Cascadia Mono", "DejaVu Sans Mono", Menlo,
 Consolas, monospace; font-size: {char_height}px; line-height: {line_height}px; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}"
 height="{terminal_height}" /></clipPath>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def diagnosis() -> Diagnosis:
    """Return the kept diagnosis."""
    kept = json.loads(RESULTS.read_text(encoding="utf-8"))["programs"][PROGRAM]["diagnosis"]
    # It was kept as version 1, whose fields that a screen shows have the same names.
    kept["schema"] = "dynotune.diagnosis/2"
    return document.decode(json.dumps(kept).encode(), Diagnosis, name=str(RESULTS))


def svg() -> str:
    """Return what a terminal of 80 columns shows of the diagnosis, as SVG."""
    console = Console(
        record=True, file=io.StringIO(), width=WIDTH, height=HEIGHT, force_terminal=True, highlight=False
    )
    found = diagnosis()
    typed = f"dynotune diagnose -- {words.command(found.command)}"
    screen = terminal.shown(layout_of(found), On.SCREEN)
    console.print(Text.assemble(("$ ", "dim"), typed), Text(), screen, sep="\n")
    return console.export_svg(title="dynotune", theme=THEME, code_format=FORMAT, unique_id="d")


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(svg(), encoding="utf-8")
