"""Draw charts of kept results as SVG, for the front page of the docs and for the page of the field.

    python tools/result_charts.py       writes docs/images/chart-*.svg

A test compares the files with the results. In the site the charts take its colours; elsewhere they follow the
reader's scheme.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
RESULTS, IMAGES = ROOT / "benchmarks" / "results", ROOT / "docs" / "images"
WIDTH, LEFT, RIGHT, ROW, TOP = 720, 210, 170, 28, 34
TICKS = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
STREAMS = "streams_planned_cpu"
"""Whose cameras are drawn."""
PROGRAMS = {
    "dcgan": "DCGAN example",
    "imagenet": "ImageNet example, ResNet-50",
    "lightning": "Lightning, ImageNet",
    "nanogpt": "nanoGPT, compiled already",
    "nanogpt-eager": "nanoGPT, eager",
    "timm": "timm, train.py",
    "transformers": "Transformers, run_clm.py",
    "word-language-model": "word language model",
    "yolo-predict": "YOLO11n, predict",
    "yolo-train": "YOLO11n, train",
}
STYLE = """<style>
.chart { --ink: var(--md-default-fg-color, #1b2224); --soft: var(--md-default-fg-color--light, #59656a);
 --mark: var(--md-typeset-a-color, #0b6a72); --grid: var(--line, #dde2e3);
 font: 13px var(--md-text-font, system-ui, "Segoe UI", Roboto, sans-serif); }
@media (prefers-color-scheme: dark) { .chart { --ink: var(--md-default-fg-color, #e6ebec);
 --soft: var(--md-default-fg-color--light, #9daaaf); --mark: var(--md-typeset-a-color, #58c3cc);
 --grid: var(--line, #303a3e); } }
.chart text { fill: var(--ink); } .chart .soft { fill: var(--soft); }
.chart .grid { stroke: var(--grid); } .chart .one { stroke: var(--soft); }
.chart .mark { fill: var(--mark); stroke: var(--mark); }
.chart .open { fill: none; stroke-width: 2; }
.chart .other { fill: var(--soft); } .chart .range { stroke: var(--mark); stroke-width: 2; }
</style>"""


class Row(NamedTuple):
    """A row of a forest plot: a ratio with its interval, or only a text where nothing was proved."""

    name: str
    text: str
    ratio: float | None = None
    ci: tuple[float, float] | None = None
    is_verified: bool = False


def public_rows() -> list[Row]:
    """Return what `tune` proved in public programs on an H200, and what fresh pairs said of it afterwards."""
    rows = []
    for key, found in _kept("public_cuda")["programs"].items():
        name = PROGRAMS[key]
        if verified := found.get("verify"):
            rows.append(_row(name, verified["speedup"], verified["ci"], is_verified=True))
        elif found["tune"]["stated"] is not None:
            rows.append(_row(name, found["tune"]["stated"], found["tune"]["ci"], is_verified=False))
        else:
            rows.append(Row(name, "nothing proved"))
    return sorted(rows, key=lambda row: -(row.ratio or 0.0))


def _row(name: str, ratio: float, ci: Sequence[float], *, is_verified: bool) -> Row:
    low, high = ci
    return Row(name, f"{ratio:.2f}× ({low:.2f} to {high:.2f})", ratio, (low, high), is_verified)


def public() -> str:
    """Draw a forest plot on a logarithmic axis; an interval that leaves it is cut at its end."""
    rows = public_rows()
    height = TOP + ROW * len(rows) + 30
    drawn = list(_axis(height))
    for number, row in enumerate(rows):
        y = TOP + ROW * number + ROW / 2
        drawn.append(_text(LEFT - 12, y + 4.5, row.name, anchor="end"))
        drawn.append(_text(WIDTH - RIGHT + 14, y + 4.5, row.text, kind="" if row.ratio else "soft"))
        if row.ratio is not None and row.ci is not None:
            low, high = (_x(end) for end in row.ci)
            drawn.append(f'<path class="range" d="M{low:.1f} {y}H{high:.1f}"/>')
            kind = "mark" if row.is_verified else "mark open"
            drawn.append(f'<circle class="{kind}" cx="{_x(row.ratio):.1f}" cy="{y}" r="5"/>')
    label = "Speed of ten public programs with what dynotune tune proved in three minutes, with 95% intervals"
    return _svg(height, label, drawn)


def _axis(height: float) -> Iterator[str]:
    for tick in TICKS:
        kind = "one" if tick == 1.0 else "grid"
        yield f'<path class="{kind}" d="M{_x(tick):.1f} {TOP - 8}V{height - 24}"/>'
        yield _text(_x(tick), height - 6, f"{tick:g}×", anchor="middle", kind="soft")
    yield _text(_x(1.0) + 8, TOP - 14, "faster →", kind="soft")
    yield _text(_x(1.0) - 8, TOP - 14, "← slower", anchor="end", kind="soft")


def _x(ratio: float) -> float:
    begin, end = math.log(TICKS[0]), math.log(TICKS[-1])
    share = (math.log(min(max(ratio, TICKS[0]), TICKS[-1])) - begin) / (end - begin)
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def false_wins() -> str:
    """Draw how often each tool's protocol says "faster" where nothing is to gain, at a noise of 5%."""
    rows = [
        (row["protocol"], row["faster"])
        for row in _kept("field_power")["protocols"]
        if row["noise"] == "noise 5%" and row["speedup"] == 1.0
    ]
    largest, height = 0.6, TOP + ROW * len(rows) + 4
    drawn = [_text(LEFT, TOP - 14, "says “faster” where nothing is to gain, noise of 5%", kind="soft")]
    for number, (name, share) in enumerate(rows):
        y, length = TOP + ROW * number, max(share / largest * (WIDTH - LEFT - RIGHT), 1.5)
        kind = "mark" if name.startswith("dynotune") else "other"
        drawn.append(_text(LEFT - 12, y + 17, name, anchor="end"))
        drawn.append(f'<rect class="{kind}" x="{LEFT}" y="{y + 4}" width="{length:.1f}" height="18" rx="2"/>')
        drawn.append(_text(LEFT + length + 8, y + 17, f"{share:.1%}"))
    return _svg(height, "Share of false wins by tool, of 10,000 simulated comparisons", drawn)


def each_camera() -> str:
    """Draw the median and the 99th percentile of each camera's latency, beside the deadline."""
    kept = _kept(STREAMS)["each camera"]
    cameras, deadline_s = kept["cameras"], kept["deadline_s"]
    most_s: float = 1.15 * max(deadline_s, *(camera["p99_s"] for camera in cameras))
    height = TOP + ROW * len(cameras) + 30

    def x(time_s: float) -> float:
        return LEFT + time_s / most_s * (WIDTH - LEFT - RIGHT)

    drawn = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        kind = "one" if share == 1.0 else "grid"
        drawn.append(f'<path class="{kind}" d="M{x(share * deadline_s):.1f} {TOP - 8}V{height - 24}"/>')
        label = f"{share * deadline_s * 1000:g} ms"
        drawn.append(_text(x(share * deadline_s), height - 6, label, anchor="middle", kind="soft"))
    drawn.append(_text(x(deadline_s), TOP - 14, "deadline", anchor="middle", kind="soft"))
    for number, camera in enumerate(cameras):
        y, (p50_s, p99_s) = TOP + ROW * number + ROW / 2, (camera["p50_s"], camera["p99_s"])
        drawn.append(_text(LEFT - 12, y + 4.5, camera["name"], anchor="end"))
        drawn.append(f'<path class="range" d="M{x(p50_s):.1f} {y}H{x(p99_s):.1f}"/>')
        drawn.append(f'<circle class="mark open" cx="{x(p50_s):.1f}" cy="{y}" r="5"/>')
        drawn.append(f'<circle class="mark" cx="{x(p99_s):.1f}" cy="{y}" r="5"/>')
        text = f"{p50_s * 1000:.1f} to {p99_s * 1000:.1f} ms"
        lost = f", {camera['dropped']} lost" if camera["dropped"] else ""
        drawn.append(_text(WIDTH - RIGHT + 14, y + 4.5, text + lost))
    label = f"Median and 99th percentile of the latency of each of {len(cameras)} cameras"
    return _svg(height, label, drawn)


def _text(x: float, y: float, text: str, *, anchor: str = "start", kind: str = "") -> str:
    about = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{about}>{escape(text)}</text>'


def _svg(height: float, label: str, drawn: Sequence[str]) -> str:
    head = (
        f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img"'
    )
    return f'{head} aria-label="{escape(label)}">\n{STYLE}\n' + "\n".join(drawn) + "\n</svg>\n"


def _kept(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


CHARTS: dict[str, Callable[[], str]] = {
    "chart-public.svg": public,
    "chart-false-wins.svg": false_wins,
    "chart-cameras.svg": each_camera,
}


if __name__ == "__main__":
    for name, draw in CHARTS.items():
        (IMAGES / name).write_text(draw(), encoding="utf-8")
