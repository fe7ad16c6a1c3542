"""Provide what the figures of a study's page share: axes of ratios, bands, and whiskers."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from dynotune.report.study.rows import interval_of
from dynotune.schema.study import Estimate
from dynotune.text import words

# Ticks that are candidates for a logarithmic axis of ratios, the coarse ones first.
RATIOS = (1.0, 2.0, 0.5, 5.0, 0.2, 1.5, 0.7, 3.0, 10.0, 0.1, 20.0, 50.0, 100.0, 0.05, 0.02, 0.01)
FINE_RATIOS = (1.0, 1.2, 0.8, 1.1, 0.9, 1.05, 0.95, 1.4, 1.6, 1.02, 0.98, 1.01, 0.99)
NUM_TICKS = 7
# No ratio is drawn beyond: it says only that something else went wrong.
LARGEST = 100.0


def whiskers(points: Iterable[tuple[float, float, float]], colour: str) -> dict[str, Any]:
    """Return Plotly's error bars for these estimates and their intervals."""
    ends = list(points)
    return {
        "type": "data",
        "symmetric": False,
        "array": [max(0.0, high - middle) for middle, _, high in ends],
        "arrayminus": [max(0.0, middle - low) for middle, low, _ in ends],
        "color": {"css": colour},
        "thickness": 2,
        "width": 0,
    }


def ratio_axis(estimates: Sequence[Estimate], margin: float) -> dict[str, Any]:
    """Return a logarithmic axis with these ratios, the margin and 1, and a band for ratios that count as the same."""
    known = [one.speedup for one in estimates]
    ends = [end for one in estimates for end in interval_of(one) or ()]
    least, most = min(known, default=1.0), max(known, default=1.0)
    # An interval that is very wide is cut, lest it hide the others.
    low = max(min([*ends, least]), least / 1.5)
    high = min(max([*ends, most]), most * 1.5)
    low = shown(min(low, 1 / (1 + 3 * margin), 0.98)) / 1.01
    high = shown(max(high, 1 + 3 * margin, 1.02)) * 1.01
    ticks = _ticks(low, high)
    return {
        "xaxis": {
            "type": "log",
            "range": [math.log10(low), math.log10(high)],
            "tickvals": ticks,
            "ticktext": [f"{tick:g}×" for tick in ticks],
        },
        "shapes": [band(1 / (1 + margin), 1 + margin, "band"), rule(1.0, "muted", "dot")],
    }


def edge_arrows(points: Sequence[tuple[int, str, Estimate]], axis: dict[str, Any]) -> list[dict[str, Any]]:
    """Return arrows at the edges of a `ratio_axis` for intervals that go on beyond it; empty if there are none."""
    low, high = (10**end for end in axis["xaxis"]["range"])
    ends = [(at, ci) for at, _, one in points if (ci := interval_of(one)) is not None]
    arrows = [(at, low, "triangle-left", words.interval(ci)) for at, ci in ends if ci[0] < low]
    arrows += [(at, high, "triangle-right", words.interval(ci)) for at, ci in ends if ci[1] > high]
    if not arrows:
        return []
    found = dots(
        [edge for _, edge, _, _ in arrows],
        [at for at, _, _, _ in arrows],
        [[f"the interval goes on: {told}"] for _, _, _, told in arrows],
        symbol=[symbol for _, _, symbol, _ in arrows],
        size=8,
        colour="muted",
    )
    return [found]


def dots(
    x: Sequence[float],
    y: Sequence[int],
    hover: list[list[str]],
    *,
    symbol: str | list[str],
    size: int,
    colour: str,
    line: dict[str, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Return points with hover texts; `line`: colour of their outlines."""
    marker = {"symbol": symbol, "size": size, "color": {"css": colour}} | ({"line": line} if line else {})
    return {"type": "scatter", "mode": "markers", "x": x, "y": y, "marker": marker, "hover": hover, **more}


def bars(x: Sequence[float], y: Sequence[int], hover: list[list[str]], *, width: float, **more: Any) -> dict[str, Any]:
    """Return bars, in order from left to right."""
    return {"type": "bar", "orientation": "h", "x": x, "y": y, "width": width, "hover": hover, **more}


def _ticks(low: float, high: float) -> list[float]:
    candidates = [ratio for ratio in (*RATIOS, *FINE_RATIOS) if low <= ratio <= high]
    apart = math.log(high / low) / (NUM_TICKS + 2)
    chosen: list[float] = []
    for ratio in dict.fromkeys(candidates):
        if len(chosen) < NUM_TICKS and all(abs(math.log(ratio / other)) >= apart for other in chosen):
            chosen.append(ratio)
    return sorted(chosen)


def shown(ratio: float) -> float:
    return min(max(ratio, 1 / LARGEST), LARGEST)


def band(low: float, high: float, colour: str) -> dict[str, Any]:
    return {
        "type": "rect",
        "yref": "paper",
        "x0": low,
        "x1": high,
        "y0": 0,
        "y1": 1,
        "fillcolor": {"css": colour},
        "line": {"width": 0},
        "layer": "below",
    }


def rule(at: float, colour: str, dash: str) -> dict[str, Any]:
    line = {"color": {"css": colour}, "width": 1, "dash": dash}
    return {"type": "line", "yref": "paper", "x0": at, "x1": at, "y0": 0, "y1": 1, "line": line, "layer": "below"}
