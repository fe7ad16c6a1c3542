"""Write tables of kept results into pages of the docs, each between two comments that name it.

    python tools/result_tables.py

A test compares the pages with the results.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
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


def detector(result: dict[str, Any]) -> str:
    """Return the rates that `benchmarks/detector_parts.py` kept, beside those of others and limits."""
    batches: dict[str, Any] = result["sections"]["rates"]
    arms = {
        "Ultralytics `predict`, float32": "ultralytics float32",
        "Ultralytics `predict`, half": "ultralytics half",
        "`predict`, before": "earlier_1 predict",
        "`stream`, before": "earlier_1 stream",
        "`predict`": "dynotune predict",
        "`stream`, three batches under way": "dynotune stream",
        "`stream`, six batches under way": "dynotune stream, depth 6",
    }

    def row(name: str, value: Callable[[dict[str, Any]], str]) -> str:
        return f"| {name} | {' | '.join(value(batch) for batch in batches.values())} |"

    def rate(name: str, batch: dict[str, Any]) -> str:
        return f"{batch['images_per_s'][name]:,.0f}"

    def best(batch: dict[str, Any]) -> float:
        return max(float(rate) for name, rate in batch["images_per_s"].items() if name.startswith("dynotune"))

    def over(batch: dict[str, Any]) -> str:
        theirs = (batch["images_per_s"][f"ultralytics {kind}"] for kind in ("float32", "half"))
        return ", ".join(f"{best(batch) / rate:.1f}×" for rate in theirs)

    def lower(batch: dict[str, Any]) -> float:
        return float(min(batch["forward_alone_per_s"], batch["link_whole_frames_per_s"]))

    rows = [
        "| " + " | ".join(["", *batches]) + " |",
        "| --- |" + " --- |" * len(batches),
        *(row(label, partial(rate, name)) for label, name in arms.items()),
        row("the best of ours over theirs", over),
        row("the forward alone, one after the other", lambda batch: f"{batch['forward_alone_per_s']:,.0f}"),
        row("the best of it", lambda batch: f"{best(batch) / batch['forward_alone_per_s']:.0%}"),
        row("the link, were whole frames copied", lambda batch: f"{batch['link_whole_frames_per_s']:,.0f}"),
        row("the best of the lower of both", lambda batch: f"{best(batch) / lower(batch):.0%}"),
    ]
    return "\n".join(rows)


TABLES: dict[str, Callable[[], str]] = {
    "rates of the detector": lambda: detector(_kept("detector_parts_cuda")),
    "streams on a GPU": lambda: streams(_kept("streams_planned_cuda")),
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
