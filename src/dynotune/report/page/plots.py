"""Build the figures of pages, as data for Plotly.

Text stays unescaped and in separate fields (`rows`, `hover`): the page's script escapes it, since Plotly
reads tags in text. A colour is `{"css": name}`, which names a custom property of the page's style.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from dynotune.report.bars import OF_A_STEP
from dynotune.report.breakdown import Breakdown
from dynotune.report.study.rows import KINDS, PHASES, Kind, Tried, interval_of
from dynotune.schema.comparison import Comparison
from dynotune.schema.study import Estimate
from dynotune.text import words

Figure = dict[str, Any]

FILLS = {"device": "", "communication": ".", "transfer": "-", "input": "/", "host": "x", "other": ""}
# Longer than a screen: the axis stands above.
MOST_ROWS_OVER_AN_AXIS = 18
LONGEST_LABEL, LONGEST_HOVER = 400, 400

# Ticks that are candidates for a logarithmic axis of ratios, the coarse ones first.
RATIOS = (1.0, 2.0, 0.5, 5.0, 0.2, 1.5, 0.7, 3.0, 10.0, 0.1, 20.0, 50.0, 100.0, 0.05, 0.02, 0.01)
FINE_RATIOS = (1.0, 1.2, 0.8, 1.1, 0.9, 1.05, 0.95, 1.4, 1.6, 1.02, 0.98, 1.01, 0.99)
NUM_TICKS = 7
# No ratio is drawn beyond: it says only that something else went wrong.
LARGEST = 100.0


def shares(sides: Sequence[Breakdown], label: str) -> Figure | None:
    """Plot breakdowns as stacked bars: in milliseconds if all are timed, else as shares; None if there is
    none."""
    if not sides:
        return None
    wholes_s = [side.whole_s for side in sides if side.whole_s is not None]
    timed = len(wholes_s) == len(sides)
    scales = [1e3 * whole_s for whole_s in wholes_s] if timed else [100.0 for _ in sides]
    unit = " ms" if timed else "%"
    has_device = any(side.has_device for side in sides)
    places = list(range(len(sides)))
    traces = []
    for part in OF_A_STEP:
        parts = [max(0.0, part.of(side.shares)) for side in sides]
        if not any(parts):
            continue
        lengths = [share * scale for share, scale in zip(parts, scales, strict=True)]
        hover = [
            [f"{side.name}: {part.named(has_device)}", words.fine_share(share)]
            for side, share in zip(sides, parts, strict=True)
        ]
        if timed:
            for lines, length in zip(hover, lengths, strict=True):
                lines[1] += f", {words.duration(length / 1e3)}"
        pattern = {"fillmode": "overlay", "shape": FILLS[part.field], "fgcolor": {"css": "surface"}}
        marker = {
            "color": {"css": f"part-{part.field}"},
            "pattern": {**pattern, "size": 7, "solidity": 0.25},
            "line": {"color": {"css": "surface"}, "width": 1},
        }
        traces.append(bars(lengths, places, hover, width=0.62, marker=marker))
    return {
        "label": label,
        "data": traces,
        "layout": {"barmode": "stack", "xaxis": {"ticksuffix": unit, "rangemode": "tozero", "nticks": 6}},
        "rows": [{"y": at, "text": side.name} for at, side in enumerate(sides)],
        "row_height": 58,
    }


def forest(rows: Sequence[Tried], *, margin: float) -> Figure | None:
    """Plot each setting alone against the baseline, grouped by fate, with the band of ratios that count as
    the same."""
    lines: list[dict[str, Any]] = []
    points: dict[Kind, list[tuple[int, str, Estimate]]] = {}
    kind: Kind | None = None
    for row in rows:
        if row.kind != kind:
            kind = row.kind
            lines.append({"y": len(lines), "text": row.look.name, "head": True})
        at = len(lines)
        line: dict[str, Any] = {"y": at, "text": words.plain(row.name, longest=LONGEST_LABEL)}
        if row.shown is not None:
            points.setdefault(kind, []).append((at, row.name, row.shown))
        else:
            line["note"] = "not measured" if kind in ("not-tried", "open") else "×  no measurement"
        lines.append(line)
    drawn = [point for group in points.values() for point in group]
    if not drawn:
        return None
    traces = [_points(group, KINDS[kind].symbol, KINDS[kind].colour) for kind, group in points.items()]
    figure = _ratios("Speed-up of each setting alone, with its interval", drawn, traces, lines, margin)
    if len(lines) > MOST_ROWS_OVER_AN_AXIS:
        figure["layout"]["xaxis"]["side"] = "top"
    return {**figure, "kinds": list(points)}


def worths(rows: Sequence[Tried], *, margin: float) -> Figure | None:
    """Plot how much each setting adds to the bundle: the bundle with the setting against the bundle without
    it."""
    points = [(at, row.candidate.id, row.worth) for at, row in enumerate(rows) if row.worth is not None]
    if not points:
        return None
    kept = [point for point, row in zip(points, rows, strict=True) if row.kind == "proved"]
    dropped = [point for point in points if point not in kept]
    traces = [_points(kept, "circle", "accent"), _points(dropped, "square-open", "muted")]
    lines = [{"y": at, "text": words.plain(id, longest=LONGEST_LABEL)} for at, id, _ in points]
    return _ratios(
        "What each setting is worth within the whole, with its interval", points, traces, lines, margin
    )


def pairs(comparison: Comparison) -> Figure | None:
    """Plot the speed-up of a comparison with its confidence interval, and the ratio of each pair below."""
    ratios = [pair.baseline_s / pair.candidate_s for pair in comparison.pairs if pair.candidate_s > 0]
    if comparison.speedup is None or not ratios:
        return None
    named = [("all", comparison.speedup, comparison.ci)]
    named += [(f"{noun(comparison)} {at}", ratio, None) for at, ratio in enumerate(ratios, start=1)]
    points = [
        (at, name, Estimate(arm=name, against="", phase="confirm", speedup=ratio, ci=ci, num_blocks=1))
        for at, (name, ratio, ci) in enumerate(named)
    ]
    traces = [_points(points[:1], "circle", "accent"), _points(points[1:], "circle-open", "muted")]
    for trace in traces:
        trace["hover"] = [lines[:-1] for lines in trace["hover"]]
    rows = [{"y": at, "text": name} for at, name, _ in points]
    return _ratios("The speed-up with its interval, and each pair", points, traces, rows, comparison.margin)


def noun(comparison: Comparison) -> str:
    return "block" if comparison.within else "pair"


def _ratios(
    label: str,
    points: Sequence[tuple[int, str, Estimate]],
    traces: Sequence[dict[str, Any]],
    rows: Sequence[dict[str, Any]],
    margin: float,
) -> Figure:
    """Return traces on an axis that includes all points, with arrows for intervals that go on beyond it."""
    layout = ratio_axis([one for _, _, one in points], margin)
    return {"label": label, "data": [*traces, *edge_arrows(points, layout)], "layout": layout, "rows": rows}


def _points(points: Sequence[tuple[int, str, Estimate]], symbol: str, colour: str) -> dict[str, Any]:
    """Return estimates with their intervals; an estimate without an interval is a mark alone."""
    ends = [(one.speedup, *(interval_of(one) or (one.speedup, one.speedup))) for _, _, one in points]
    return dots(
        [shown(one.speedup) for _, _, one in points],
        [at for at, _, _ in points],
        [[words.plain(name, longest=LONGEST_HOVER), *_figures(one)] for _, name, one in points],
        symbol=symbol,
        size=11,
        colour=colour,
        line={"width": 2, "color": {"css": colour}},
        error_x=whiskers(((shown(middle), shown(low), shown(high)) for middle, low, high in ends), colour),
    )


def _figures(estimate: Estimate) -> list[str]:
    ci = interval_of(estimate)
    speedup = words.times(estimate.speedup, digits=words.digits(ci))
    unit = "switches" if estimate.phase == "switch" else "blocks"
    return [
        f"{speedup} ({words.interval(ci)}, {estimate.confidence:.0%})" if ci else speedup,
        f"{estimate.num_blocks} {unit}, {PHASES[estimate.phase]}",
    ]


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
    """Return a logarithmic axis with these ratios, the margin and 1, and a band for ratios that count as the
    same."""
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
    """Return arrows at the edges of a `ratio_axis` for intervals that go on beyond it; empty if there are
    none."""
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


def bars(
    x: Sequence[float], y: Sequence[int], hover: list[list[str]], *, width: float, **more: Any
) -> dict[str, Any]:
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
    return {
        "type": "line",
        "yref": "paper",
        "x0": at,
        "x1": at,
        "y0": 0,
        "y1": 1,
        "line": line,
        "layer": "below",
    }
