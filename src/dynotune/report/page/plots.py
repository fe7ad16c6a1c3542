"""The figures of a study's page, as data for Plotly.

Texts are kept raw and in places of their own (`rows`, `hover`): the page's script escapes them, since Plotly reads
tags in texts. A colour is `{"css": name}`, a custom property of the page's style.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from dynotune.report.bars import OF_A_STEP
from dynotune.report.study.rows import KINDS, PHASES, Joint, Kind, Saved, Tried, interval_of
from dynotune.schema.attribution import Shares
from dynotune.schema.comparison import Comparison
from dynotune.schema.facts import Unknown
from dynotune.schema.observation import Timing
from dynotune.schema.study import Estimate, Study, Trial
from dynotune.text import words

# Ticks that are candidates for a logarithmic axis of ratios, the coarse ones first.
RATIOS = (1.0, 2.0, 0.5, 5.0, 0.2, 1.5, 0.7, 3.0, 10.0, 0.1, 20.0, 50.0, 100.0, 0.05, 0.02, 0.01)
FINE_RATIOS = (1.0, 1.2, 0.8, 1.1, 0.9, 1.05, 0.95, 1.4, 1.6, 1.02, 0.98, 1.01, 0.99)
NUM_TICKS = 7
# No ratio is drawn beyond: it says only that something else went wrong.
LARGEST = 100.0


def whiskers(points: Iterable[tuple[float, float, float]], colour: str) -> dict[str, Any]:
    """Plotly's error bars from middles with their ends."""
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


def ratio_axis(estimates: Sequence[Estimate], margin: float, *, also: Sequence[float] = ()) -> dict[str, Any]:
    """A logarithmic axis that holds these ratios, the margin and 1, with the band in which ratios count as the same."""
    known = [one.speedup for one in estimates] + list(also)
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
    """Arrows at the edges, where intervals go on beyond a `ratio_axis`; none where none does."""
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
    """Points with texts for whoever points at them; `line`: around each."""
    marker = {"symbol": symbol, "size": size, "color": {"css": colour}} | ({"line": line} if line else {})
    return {"type": "scatter", "mode": "markers", "x": x, "y": y, "marker": marker, "hover": hover, **more}


def bars(x: Sequence[float], y: Sequence[int], hover: list[list[str]], *, width: float, **more: Any) -> dict[str, Any]:
    """Bars from left to right."""
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


Figure = dict[str, Any]

FILLS = {"device": "", "communication": ".", "transfer": "-", "input": "/", "host": "x", "other": ""}
# Longer than a screen: the axis stands above.
MOST_ROWS_OVER_AN_AXIS = 18
# Of a run's time, drawn: runs follow each other closely.
GAP = 0.85
# A loss beyond this share of the time is drawn as this much, lest it hide the gains.
MOST_LOST = -0.6
LONGEST_LABEL, LONGEST_HOVER = 400, 400


def shares(study: Study) -> Figure | None:
    """A step before and after as stacked bars: in milliseconds where both are timed, else in parts of one."""
    sides = [
        (label, found.shares, found.steps, found.busy_share is not None)
        for label, found in ((study.begun, study.diagnosis), ("with the recipe", study.diagnosis_with_recipe))
        if not isinstance(found, Unknown) and not isinstance(found.shares, Unknown)
    ]
    if not sides:
        return None
    timed = all(isinstance(steps, Timing) for _, _, steps, _ in sides)
    scales = [1e3 * steps.step_s if timed and isinstance(steps, Timing) else 100.0 for _, _, steps, _ in sides]
    unit = " ms" if timed else "%"
    has_device = any(side[3] for side in sides)
    places = list(range(len(sides)))
    traces = []
    for part in OF_A_STEP:
        parts = [max(0.0, part.of(found)) if isinstance(found, Shares) else 0.0 for _, found, _, _ in sides]
        if not any(parts):
            continue
        lengths = [share * scale for share, scale in zip(parts, scales, strict=True)]
        hover = [
            [f"{label}: {part.named(has_device)}", words.fine_share(share)]
            for (label, *_), share in zip(sides, parts, strict=True)
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
        "label": f"Where a step goes, {study.begun} and with the recipe",
        "data": traces,
        "layout": {"barmode": "stack", "xaxis": {"ticksuffix": unit, "rangemode": "tozero", "nticks": 6}},
        "rows": [{"y": at, "text": label} for at, (label, *_) in enumerate(sides)],
        "row_height": 58,
    }


def forest(rows: Sequence[Tried], *, margin: float) -> Figure | None:
    """Each setting alone against the baseline, by fate, with the band in which a ratio counts as the same."""
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
    """What each setting is worth within the whole, or on top of it: with it against without."""
    points = [(at, row.candidate.id, row.worth) for at, row in enumerate(rows) if row.worth is not None]
    if not points:
        return None
    kept = [point for point, row in zip(points, rows, strict=True) if row.kind == "proved"]
    dropped = [point for point in points if point not in kept]
    traces = [_points(kept, "circle", "accent"), _points(dropped, "square-open", "muted")]
    lines = [{"y": at, "text": words.plain(id, longest=LONGEST_LABEL)} for at, id, _ in points]
    return _ratios("What each setting is worth within the whole, with its interval", points, traces, lines, margin)


def joint(rows: Sequence[Joint], *, margin: float) -> Figure | None:
    """Settings tried together, beside the product of what they gave alone."""
    if not rows:
        return None
    together = [(at, " + ".join(row.ids), row.estimate) for at, row in enumerate(rows)]
    products = [
        (at, name, row.parts) for (at, name, _), row in zip(together, rows, strict=True) if row.parts is not None
    ]
    parts = dots(
        [shown(product) for _, _, product in products],
        [at for at, _, _ in products],
        [[name[:LONGEST_HOVER], f"its parts, multiplied: {words.times(product)}"] for _, name, product in products],
        symbol="line-ns-open",
        size=17,
        colour="ink",
        line={"width": 2},
    )
    lines = [
        {"y": at, "text": words.plain(name, longest=2 * LONGEST_LABEL), "lines": list(map(words.plain, row.ids))}
        for (at, name, _), row in zip(together, rows, strict=True)
    ]
    traces = [parts, _points(together, "circle", "accent")]
    label = "Settings together, beside the product of their parts"
    return _ratios(label, together, traces, lines, margin, also=[product for _, _, product in products])


def _ratios(
    label: str,
    points: Sequence[tuple[int, str, Estimate]],
    traces: Sequence[dict[str, Any]],
    rows: Sequence[dict[str, Any]],
    margin: float,
    also: Sequence[float] = (),
) -> Figure:
    """Traces on an axis that holds the points and `also`, with arrows where intervals go on beyond it."""
    layout = ratio_axis([one for _, _, one in points], margin, also=also)
    return {"label": label, "data": [*traces, *edge_arrows(points, layout)], "layout": layout, "rows": rows}


def bounds(rows: Sequence[Saved]) -> Figure | None:
    """Of the baseline's time: what a setting could save at most, and what it saved."""
    if not rows:
        return None
    places = list(range(len(rows)))
    ids = [words.plain(row.candidate.id, longest=LONGEST_LABEL) for row in rows]
    told = [
        [id, f"at most {words.fine_share(row.bound)}", words.plain(row.candidate.bound_by, longest=LONGEST_HOVER)]
        for id, row in zip(ids, rows, strict=True)
    ]
    marker = {"color": {"css": "bar"}, "line": {"color": {"css": "line"}, "width": 1}}
    ceiling = bars([100 * row.bound for row in rows], places, told, width=0.5, marker=marker)
    gains = [(100 * max(MOST_LOST, row.gain), 100 * max(MOST_LOST, row.ci[0]), 100 * row.ci[1]) for row in rows]
    measured = dots(
        [gain for gain, _, _ in gains],
        places,
        [
            [id, f"saved {words.saved(row.speedup)} ({words.saved_interval(row.speedup_ci)})"]
            for id, row in zip(ids, rows, strict=True)
        ],
        symbol="circle",
        size=10,
        colour="accent",
        error_x=whiskers(gains, "accent"),
    )
    ends = [end for row in rows for end in (row.gain, *row.ci)]
    least = max(min([0.0, *ends]), MOST_LOST)
    most = max(*(row.bound for row in rows), *ends, 0.0)
    axis = {"ticksuffix": "%", "nticks": 6, "range": [104 * least - 2, 104 * most + 2], "zeroline": True}
    return {
        "label": "What each setting could save at most, and what it saved",
        "data": [ceiling, measured],
        "layout": {"barmode": "overlay", "xaxis": axis},
        "rows": [{"y": at, "text": id} for at, id in enumerate(ids)],
        "lift": 13,
    }


def pairs(comparison: Comparison) -> Figure | None:
    """The ratio of each pair of the confirmation, with the interval of the whole."""
    ratios = [pair.baseline_s / pair.candidate_s for pair in comparison.pairs if pair.candidate_s > 0]
    if not ratios:
        return None
    layout = ratio_axis([], comparison.margin, also=[*ratios, *(comparison.ci or ())])
    if comparison.ci is not None:
        low, high = (shown(end) for end in comparison.ci)
        layout["shapes"].append(band(low, high, "accent-band"))
    if comparison.speedup is not None:
        layout["shapes"].append(rule(shown(comparison.speedup), "accent", "solid"))
    hover = [[f"pair {at}", words.times(ratio)] for at, ratio in enumerate(ratios, start=1)]
    places = list(range(len(ratios)))
    trace = dots([shown(ratio) for ratio in ratios], places, hover, symbol="circle", size=9, colour="accent")
    rows = [{"y": at, "text": f"pair {at + 1}"} for at in range(len(ratios))]
    label = "Each pair of the confirmation, with the interval of all"
    return {"label": label, "data": [trace], "layout": layout, "rows": rows, "row_height": 22}


def timeline(study: Study) -> Figure | None:
    """Each run on a time axis, a line a phase; voids and failures have marks of their own."""
    phases = [phase for phase in PHASES if any(trial.phase == phase for trial in study.trials)]
    if not phases:
        return None
    # Pilots too, whose value counts for nothing.
    complete = [trial for trial in study.trials if trial.ended == "measured" and not trial.void]
    of_baseline = [trial for trial in complete if not trial.arm]
    of_arms = [trial for trial in complete if trial.arm]
    voided = [trial for trial in study.trials if trial.void]
    ended = [trial for trial in study.trials if trial.ended != "measured" and not trial.void]
    lane = {phase: at for at, phase in enumerate(phases)}
    traces = [
        _bars(of_baseline, lane, "muted", 0.34),
        _bars(of_arms, lane, "accent", 0.62),
        _marks(voided, lane, "circle-open", "ink"),
        _marks(ended, lane, "x-thin-open", "ink"),
    ]
    return {
        "label": "Runs in order of time, a line for each phase",
        "data": [trace for trace in traces if trace["y"]],
        "layout": {"barmode": "overlay", "xaxis": {"ticksuffix": " min", "rangemode": "tozero", "nticks": 8}},
        "rows": [{"y": at, "text": PHASES[phase]} for at, phase in enumerate(phases)],
        "row_height": 44,
    }


def _bars(trials: Sequence[Trial], lane: dict[Any, int], colour: str, width: float) -> dict[str, Any]:
    return bars(
        [max(0.01, GAP * _minutes(trial.wall_s)) for trial in trials],
        [lane[trial.phase] for trial in trials],
        [_label(trial) for trial in trials],
        width=width,
        base=[_minutes(trial.began_s) for trial in trials],
        marker={"color": {"css": colour}, "line": {"width": 0}},
    )


def _marks(trials: Sequence[Trial], lane: dict[Any, int], symbol: str, colour: str) -> dict[str, Any]:
    return dots(
        [_minutes(trial.began_s + trial.wall_s / 2) for trial in trials],
        [lane[trial.phase] for trial in trials],
        [_label(trial) for trial in trials],
        symbol=symbol,
        size=11,
        colour=colour,
        line={"width": 2},
    )


def _label(trial: Trial) -> list[str]:
    """What a run's mark says."""
    arm = words.plain(trial.arm, longest=LONGEST_LABEL) or "baseline"
    block = f", block {trial.block}" if trial.block else ""
    ending = "void: " + trial.void if trial.void else "" if trial.ended == "measured" else trial.ended
    lines = [arm, f"{PHASES[trial.phase]}{block}, {words.duration(trial.wall_s)}"]
    return lines + ([words.plain(ending, longest=LONGEST_LABEL)] if ending else [])


def _minutes(seconds: float) -> float:
    return round(seconds / 60, 3) if math.isfinite(seconds) else 0.0


def _points(points: Sequence[tuple[int, str, Estimate]], symbol: str, colour: str) -> dict[str, Any]:
    """Estimates with their intervals; one without an interval is a mark alone."""
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
        f"{speedup} ({words.interval(ci)}, {estimate.confidence:.0%})",
        f"{estimate.num_blocks} {unit}, {PHASES[estimate.phase]}",
    ]
