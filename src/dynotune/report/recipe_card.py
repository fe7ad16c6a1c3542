"""Draw a recipe as one small SVG, for a pull request."""

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

from dynotune.schema.recipe import Recipe
from dynotune.text import words

_WIDTH = 640
_LINE = 22
_MOST_SETTINGS = 6
_LONGEST = 78
_FACTS = ("gpu", "cpu", "torch", "driver")
_FONT = "ui-sans-serif,-apple-system,Segoe UI,Helvetica,Arial,sans-serif"
_MONO = "ui-monospace,SFMono-Regular,Menlo,Consolas,monospace"


def card(recipe: Recipe, settings: Sequence[str], command: Sequence[str]) -> str:
    """Return the SVG: speed-up with interval, settings, command and machine.

    It loads nothing and runs nothing, and is readable on light and dark pages.

    Args:
        settings: the recipe's checked settings, as text. `command`: without secrets.
    """
    head = recipe.recipe
    shown = [*settings[:_MOST_SETTINGS]]
    if len(settings) > _MOST_SETTINGS:
        shown.append(f"and {len(settings) - _MOST_SETTINGS} more")
    facts = " · ".join(
        str(recipe.facts[name]) if name in ("gpu", "cpu") else f"{name} {recipe.facts[name]}"
        for name in _FACTS
        if name in recipe.facts
    )
    lines = [_text(34, 30, _title(recipe), size=22, weight=700)]
    if head.ci is not None:
        where = "blocks within one process" if head.within else "pairs of runs"
        pairs = "" if head.num_pairs is None else f", {head.num_pairs} {where}"
        lines.append(_text(58, 30, f"{words.interval(head.ci)}, 95% confidence{pairs}", size=13))
    height = 66 + (_LINE - 2) * (head.ci is not None)
    if head.speedup is not None and head.speedup > 1:
        lines += _bars(height - 8, head.speedup)
        height += 2 * _LINE
    for setting in shown:
        height += _LINE
        lines.append(_text(height - 10, 30, setting, size=13, font=_MONO))
    for text in filter(None, [words.command(command), facts]):
        height += _LINE
        lines.append(_text(height - 4, 30, text, size=12, opacity=0.75))
    height += 16
    label = escape(_title(recipe), {'"': "&quot;"})
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{label}">\n'
        f'<rect x="0.5" y="0.5" width="{_WIDTH - 1}" height="{height - 1}" rx="10" fill="#ffffff" '
        'stroke="#d0d7de"/>\n' + "\n".join(lines) + "\n</svg>\n"
    )


def _title(recipe: Recipe) -> str:
    head = recipe.recipe
    if head.speedup is None:
        return "A recipe of dynotune"
    if head.objective in ("memory", "energy"):
        return f"{100 * (1 - 1 / head.speedup):.1f}% less {head.objective}"
    what = {
        "latency-p99": "99th percentile",
        "call-latency-p99": "99th percentile of calls",
        "time-to-first-step": "time to first step",
    }
    return f"{words.times(head.speedup)} as fast ({what.get(head.objective, head.objective)})"


def _bars(top: float, speedup: float) -> list[str]:
    """Draw what one step costs before and after, the longer bar in full width."""
    full = _WIDTH - 60 - 80
    after = full / min(speedup, math.inf)
    return [
        _text(top + 14, 30, "before", size=12),
        f'<rect x="90" y="{top + 3:.1f}" width="{full:.1f}" height="14" rx="3" fill="#8c959f"/>',
        _text(top + 36, 30, "after", size=12),
        f'<rect x="90" y="{top + 25:.1f}" width="{after:.1f}" height="14" rx="3" fill="#1a7f37"/>',
    ]


def _text(
    y: float, x: float, text: str, *, size: int, weight: int = 400, font: str = _FONT, opacity: float = 1
) -> str:
    plain = "".join(sign if sign.isprintable() else "\ufffd" for sign in text)
    short = plain if len(plain) <= _LONGEST else plain[: _LONGEST - 1] + "…"
    return (
        f'<text x="{x}" y="{y:.1f}" font-family="{font}" font-size="{size}" font-weight="{weight}" '
        f'fill="#1f2328" fill-opacity="{opacity}">{escape(short)}</text>'
    )
