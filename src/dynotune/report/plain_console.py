"""Provide the console that prints every report, message and error."""

import io
import re
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from dynotune.report import loudness

_PICTURES = {number: 0x2400 + number for number in range(0x20)} | {0x7F: 0x2421}
"""Control characters to the pictures that Unicode has for them, such as `␛`."""
_BLANKS_AT_END = re.compile(" +\n")


def console(*, stderr: bool = False, soft_wrap: bool = False, is_error: bool = False) -> Console:
    """Make a console on standard output or standard error whose texts cannot control the terminal.

    With `--quiet`, standard error shows only errors (`is_error`).

    Names, arguments and lines of output may come from anybody. Reports write non-printing characters as
    escapes (`text.words.plain`); this console replaces any that remain by one sign each, so that no text
    moves the cursor or sets a colour. Text is never read as markup.
    """
    is_quiet = loudness.said["quiet"] and stderr and not is_error
    return _Console(stderr=stderr, soft_wrap=soft_wrap, quiet=is_quiet)


def as_text(report: RenderableType, *, width: int = 100) -> str:
    """Render a report without colours."""
    return _recorded(report, width).export_text().rstrip()


def as_html(report: RenderableType, *, width: int = 100) -> str:
    """Render a report as an HTML element with inline styles, for a notebook; texts are escaped."""
    frame = '<pre style="white-space:pre;overflow-x:auto;line-height:1.3">{code}</pre>'
    return _recorded(report, width).export_html(inline_styles=True, code_format=frame)


def _recorded(report: RenderableType, width: int) -> Console:
    screen = _Console(record=True, file=io.StringIO(), width=width)
    screen.print(report)
    return screen


class _Console(Console):
    def __init__(self, **options: Any) -> None:
        # In a notebook's kernel rich would display each line as a cell's output of its own.
        super().__init__(highlight=False, markup=False, emoji=False, force_jupyter=False, **options)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print without cutting lines at the width: only a command to paste has longer ones, which the
        terminal wraps."""
        super().print(*objects, **({"crop": False} | options))

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as rich does, without blanks at the ends of lines, where tables fill their last column."""
        blanks: list[Segment] = []
        for segment in super().render(renderable, options):
            if segment.control:
                yield from (*blanks, segment)
                blanks = []
                continue
            text = segment.text if _prints(segment.text) else _drawn(segment.text)
            text = _BLANKS_AT_END.sub("\n", text)
            shown = text.rstrip(" ")
            if shown:
                yield from () if shown.startswith("\n") else blanks
                blanks = []
                yield segment._replace(text=shown)
            if len(shown) < len(text):
                blanks.append(segment._replace(text=text[len(shown) :]))
        yield from blanks


def _prints(text: str) -> bool:
    return text.isprintable() or text.replace("\n", "").isprintable()


def _drawn(text: str) -> str:
    return "".join(
        sign if sign.isprintable() or sign == "\n" else chr(_PICTURES.get(ord(sign), 0xFFFD)) for sign in text
    )
