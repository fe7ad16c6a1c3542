"""Write tables of kept results into pages of the docs, each between two comments that name it.

    python tools/result_tables.py

A test compares the pages with the results.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS, DOCS = ROOT / "benchmarks" / "results", ROOT / "docs"
PLACE = re.compile(r"<!-- table: (?P<name>[\w -]+) -->\n.*?<!-- end of table -->", re.DOTALL)


def streams(result: dict[str, Any]) -> str:
    """Return what `benchmarks/streams_planned.py` kept: a row for each program."""
    rows = [
        "| program | limits | predicted | proved | refuted | what binds | in real time |",
        "| --- | --- | ---: | ---: | ---: | --- | --- |",
    ]
    for name, plan in result.get("programs", {}).items():
        bounds = plan.get("predicted")
        known = (
            [bound for bound in bounds if bound["largest"] is not None] if isinstance(bounds, list) else []
        )
        first = min(known, key=lambda bound: bound["largest"], default=None)
        predicted = f"{first['largest']} ({first['name']})" if first else "unknown"
        limits = ", ".join(filter(None, (_limit(plan.get("fps"), one) for one in plan.get("limits", []))))
        binds = (plan.get("binds") or {}).get("name", "")
        soaks = "; ".join(_soak(number, soak) for number, soak in plan.get("soaks", {}).items())
        proved, refuted = (plan.get(key) or "none" for key in ("largest", "refuted"))
        rows.append(f"| {name} | {limits} | {predicted} | {proved} | {refuted} | {binds} | {soaks} |")
    return "\n".join(rows)


def _limit(fps: float | None, limit: dict[str, Any]) -> str:
    match limit["quantity"]:
        case "frame-rate":
            return f"{fps:g} fps"
        case "frame-latency-p99":
            return f"p99 {limit['bound'] * 1000:g} ms"
        case _:
            return ""


def _soak(number: str, soak: dict[str, Any]) -> str:
    """Write what a longer window at one number showed, as `16 for 120 s: p99 31 ms`."""
    if not soak.get("runs"):
        return f"{number}: failed"
    latencies = [
        one["value"]
        for run in soak["runs"]
        for one in run["measured"]
        if one["quantity"] == "frame-latency-p99"
    ]
    late = f", p99 {max(latencies) * 1000:.0f} ms" if latencies else ""
    held = "held" if soak["end"] == "ceiling" else "not held"
    return f"{number} for {soak['window_s']:g} s: {held}{late}"


TABLES: dict[str, Callable[[], str]] = {
    "streams on the CPU": lambda: streams(_kept("streams_planned_cpu")),
}


def _kept(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def filled(page: str) -> str:
    """Return the text of a page with its tables written anew."""

    def written(place: re.Match[str]) -> str:
        name = place["name"]
        return f"<!-- table: {name} -->\n\n{TABLES[name]()}\n\n<!-- end of table -->"

    return PLACE.sub(written, page)


def pages() -> list[Path]:
    """Return the pages that have tables of results."""
    return [page for page in sorted(DOCS.rglob("*.md")) if PLACE.search(page.read_text(encoding="utf-8"))]


if __name__ == "__main__":
    for page in pages():
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
