"""Bars and intervals as SVG inside rows of HTML: no script draws them, and they follow the page's width.

Places along a row are percentages of its width, so that one drawing suits every screen; colours are those of
the page's style, so that it suits both schemes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from markupsafe import Markup

from dynotune.report.blocks import Bar, Bars, Forest, Interval, LegendEntry, Plot, Tile, Tiles, Tone
from dynotune.report.page.elements import element, join, percent, unbroken
from dynotune.report.parts import Part
from dynotune.text import words

RATIOS = (1.0, 2.0, 0.5, 5.0, 0.2, 1.5, 0.7, 3.0, 10.0, 0.1, 20.0, 50.0, 100.0, 0.05, 0.02, 0.01)
"""Ticks for a logarithmic axis of ratios, the coarse ones first."""
FINE_RATIOS = (1.0, 1.2, 0.8, 1.1, 0.9, 1.05, 0.95, 1.4, 1.6, 1.02, 0.98, 1.01, 0.99)
NUM_TICKS = 5
LARGEST = 100.0
"""No ratio is drawn beyond: it says only that something else went wrong."""
LONGEST_NAME = 400
SPARK_HEIGHT = 24
_SHAPES = {
    "■": ("M-5-5h10v10h-10z", ""),
    "□": ("M-5-5h10v10h-10z", "open"),
    "◀": ("M5-6v12l-10-6z", ""),
    "◇": ("M0-7l7 7-7 7-7-7z", "open"),
    "‹": ("M6-5v10l-7-5z", ""),
    "›": ("M-6-5v10l7-5z", ""),
}


def bars(block: Bars) -> Markup:
    """Draw bars on one scale below each other, and a legend."""
    rows = [_row(row.name, _svg(*segments(row.bar)), row.figure) for row in block.rows]
    legend = [_entry(entry) for entry in block.legend]
    kind = "bars alone" if len(block.rows) == 1 and not block.rows[0].name else "bars"
    return _figure(kind, block.label, join(*rows), join(*legend))


def _entry(entry: LegendEntry) -> Markup:
    figures = element("b", unbroken(" ".join(entry.figures)))
    return element("span", swatch(entry.part), f" {entry.name} ", figures)


def tiles(block: Tiles) -> Markup:
    """Draw tiles: a name, a figure with its last minute or its share, and a detail each."""
    return element("dl", *map(_tile, block.tiles), class_="tiles")


def _tile(tile: Tile) -> Markup:
    detail = [element("dd", unbroken(tile.detail), class_="detail")] if tile.detail else []
    parts = [element("dt", tile.name), element("dd", tile.figure, class_="figure"), *detail]
    if tile.share is not None:
        parts.append(element("dd", _svg(*_meter(tile.share), class_="meter"), class_="picture"))
    elif sum(value is not None for value in tile.curve) > 1:
        parts.append(element("dd", _sparkline(tile.curve), class_="picture"))
    return element("div", *parts, class_=f"tile {tile.tone}".strip())


def _meter(share: float) -> list[Markup]:
    whole = element("rect", width="100%", height="100%", class_="track")
    return [whole, element("rect", width=percent(min(1.0, max(0.0, share))), height="100%", class_="done")]


def _sparkline(curve: Sequence[float | None]) -> Markup:
    """Draw values from 0 up as lines; a line ends where values are unknown."""
    top = 1.1 * max((value for value in curve if value is not None), default=0.0) or 1.0
    runs: list[list[str]] = [[]]
    for at, value in enumerate(curve):
        if value is None:
            runs.append([])
        else:
            runs[-1].append(f"{at},{SPARK_HEIGHT * (1 - max(0.0, value) / top):.1f}")
    lines = [element("polyline", points=" ".join(run)) for run in runs if len(run) > 1]
    box = f"0 0 {max(1, len(curve) - 1)} {SPARK_HEIGHT}"
    return element("svg", *lines, class_="spark", viewBox=box, preserveAspectRatio="none", aria_hidden="true")


def plot(block: Plot) -> Markup:
    """Leave room for a plot. The script of a live page draws it, by what stands here."""
    curves = [[curve.values, 2 if curve.is_most else 1, curve.name] for curve in block.curves]
    told = {"curves": curves, "unit": block.unit, "scale": block.scale, "most": block.most}
    drawing = element("div", role="img", aria_label=f"{block.title}, over time")
    figure = element("figure", drawing, element("figcaption"), class_="plot", data_plot=json.dumps(told))
    return element("div", element("h3", block.title), figure, class_="plotted")


def swatch(part: Part) -> Markup:
    """Return a small square in the colour of a part."""
    square = element("rect", width="100%", height="100%", **_fill(part))
    return element("svg", square, class_="swatch", aria_hidden="true")


def segments(bar: Bar) -> list[Markup]:
    """Draw the segments of a bar, at percentages of the width."""
    total = sum(max(0.0, segment.size) for segment in bar.segments)
    drawn, begin = [], bar.offset
    for segment in bar.segments:
        share = max(0.0, segment.size) / total * bar.length if total else 0.0
        if share:
            place = {"x": percent(begin), "width": percent(share), "y": "15%", "height": "70%"}
            drawn.append(element("rect", **place, **_fill(segment.part)))
        begin += share
    return drawn


def _fill(part: Part) -> dict[str, str]:
    return {"fill": part.fill} if part.fill.startswith("#") else {"class_": f"part {part.fill}"}


def forest(block: Forest) -> Markup:
    """Draw ratios with their intervals on a logarithmic axis, with the band that counts as the same."""
    axis = Axis([row for row in block.rows if row.ratio is not None], block.margin)
    rows: list[Markup] = []
    group = None
    for row in block.rows:
        if block.grouped and row.group != group:
            group = row.group
            rows.append(element("p", group, class_="group"))
        name = element("code", words.plain(row.name, longest=LONGEST_NAME)) if "=" in row.name else row.name
        if row.ratio is None:
            rows.append(_row(name, _svg(*axis.ground()), row.note, kind="none"))
        else:
            rows.append(_row(name, _svg(*axis.ground(), *axis.interval(row)), _figures(row)))
    left, right = block.ends
    ends = element("span", f"← {left}", class_="end"), element("span", f"{right} →", class_="end right")
    rows.append(_row("", _svg(*axis.labels(), class_="axis"), ""))
    rows.append(_row("", element("span", *ends, class_="ends"), ""))
    legend = [
        element("span", element("b", mark, class_=tone or None), f" {said}")
        for mark, tone, said in block.legend
    ]
    return _figure("forest", block.label, join(*rows), join(*legend))


class Axis:
    """A logarithmic axis that includes all ratios, the margin and 1; places are fractions of its width."""

    def __init__(self, rows: Sequence[Interval], margin: float) -> None:
        ratios = [row.ratio for row in rows if row.ratio is not None]
        ends = [end for row in rows for end in row.ci or ()]
        least, most = min(ratios, default=1.0), max(ratios, default=1.0)
        # An interval that is very wide is cut, lest it hide the others.
        low = max(min([*ends, least]), least / 1.5)
        high = min(max([*ends, most]), most * 1.5)
        self.low = _shown(min(low, 1 / (1 + 3 * margin), 0.98)) / 1.01
        self.high = _shown(max(high, 1 + 3 * margin, 1.02)) * 1.01
        self.margin = margin

    def place(self, ratio: float) -> float:
        clipped = min(max(ratio, self.low), self.high)
        return math.log(clipped / self.low) / math.log(self.high / self.low)

    def ticks(self) -> list[float]:
        candidates = [ratio for ratio in (*RATIOS, *FINE_RATIOS) if self.low <= ratio <= self.high]
        apart = math.log(self.high / self.low) / (NUM_TICKS + 1)
        kept: list[float] = []
        for ratio in dict.fromkeys(candidates):
            if len(kept) < NUM_TICKS and all(abs(math.log(ratio / other)) >= apart for other in kept):
                kept.append(ratio)
        return sorted(kept)

    def ground(self) -> list[Markup]:
        """Draw the grid, the band of ratios that count as the same, and the line at 1."""
        low, high = self.place(1 / (1 + self.margin)), self.place(1 + self.margin)
        band = element("rect", x=percent(low), width=percent(high - low), height="100%", class_="band")
        grid = [_line(self.place(tick), "grid") for tick in self.ticks() if tick != 1]
        return [*grid, band, _line(self.place(1.0), "one")]

    def interval(self, row: Interval) -> list[Markup]:
        """Draw an interval as a line and its ratio as a mark; an arrow where it goes on beyond the axis."""
        assert row.ratio is not None
        drawn = []
        if row.ci is not None:
            low, high = map(self.place, row.ci)
            line = element("line", x1=percent(low), x2=percent(high), y1="50%", y2="50%")
            drawn.append(element("g", line, class_=f"whisker {row.tone}".strip()))
            drawn += [_mark("‹", 0.0, row.tone)] if row.ci[0] < self.low else []
            drawn += [_mark("›", 1.0, row.tone)] if row.ci[1] > self.high else []
        return [*drawn, _mark(row.mark, self.place(row.ratio), row.tone)]

    def labels(self) -> list[Markup]:
        return [
            element("text", f"{tick:g}×", x=percent(self.place(tick)), y="50%", class_="tick")
            for tick in self.ticks()
        ]


def _mark(sign: str, place: float, tone: Tone) -> Markup:
    """Draw a sign at a place along a row, in the middle of its height."""
    if sign in _SHAPES:
        path, kind = _SHAPES[sign]
        shape = element("path", d=path, class_=f"mark {kind} {tone}".strip())
    else:
        shape = element("circle", r="5.5", class_=f"mark {'open' if sign == '○' else ''} {tone}".strip())
    return element("svg", shape, x=percent(place), y="50%", class_="at")


def _line(place: float, kind: str) -> Markup:
    return element("line", x1=percent(place), x2=percent(place), y1="0", y2="100%", class_=kind)


def _shown(ratio: float) -> float:
    return min(max(ratio, 1 / LARGEST), LARGEST)


def _svg(*shapes: Markup, class_: str | None = None) -> Markup:
    return element("svg", join(*shapes, between=""), class_=class_, aria_hidden="true")


def _figures(row: Interval) -> Markup:
    ratio, interval = row.figures
    return join(element("b", ratio), element("span", interval), between=" ")


def _row(name: str | Markup, drawing: Markup, figure: str | Markup, *, kind: str = "") -> Markup:
    named = element("span", name, class_="name")
    told = element("span", figure, class_="figure")
    return element("div", named, drawing, told, class_=f"row {kind}".strip())


def _figure(kind: str, label: str, rows: Markup, legend: Markup) -> Markup:
    about = f"{label}. The table has its numbers."
    drawing = element("div", rows, class_="chart " + kind, role="img", aria_label=about)
    return element("figure", drawing, *([element("figcaption", legend)] if legend else []))
