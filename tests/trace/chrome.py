"""Chrome traces written by hand, as torch.profiler writes them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

Event = dict[str, Any]


def span(
    cat: str, name: str, ts: float, dur: float, *, pid: object = 1, tid: object = 1, **args: object
) -> Event:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def call(
    ts: float, dur: float, correlation: int, *, name: str = "cudaLaunchKernel", pid: object = 1
) -> Event:
    return span("cuda_runtime", name, ts, dur, pid=pid, correlation=correlation)


def kernel(
    ts: float, dur: float, correlation: int, *, name: str = "gemm", device: int = 0, stream: int = 7
) -> Event:
    place: dict[str, Any] = {"pid": device, "tid": stream}
    return span("kernel", name, ts, dur, **place, device=device, stream=stream, correlation=correlation)


def named(what: str, name: str, *, pid: object = 1, tid: object = 0) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": {"name": name}}


def flow(ph: str, ts: float, number: int, *, pid: object = 1, tid: object = 1, cat: str = "ac2g") -> Event:
    return {"ph": ph, "cat": cat, "name": cat, "id": number, "pid": pid, "tid": tid, "ts": ts}


def write(path: Path, events: list[Event], **document: object) -> Path:
    """A trace, gzipped if the path ends in `.gz`."""
    text = json.dumps({"schemaVersion": 1, "traceEvents": events, **document}).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path
