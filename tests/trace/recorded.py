"""The recorded traces that tests read where they are at hand. `DYNOTUNE_TRACES` names their folder."""

from __future__ import annotations

import gzip
import json
import os
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dynotune.trace.readers import kineto
from dynotune.trace.timeline import Timeline

FOLDER = Path(os.environ.get("DYNOTUNE_TRACES", Path(__file__).parents[2].parent / "shared" / "traces"))
NAMES = [
    "h100-qwen1.5-0.5b",
    "h100-timesformer",
    "hta-alexnet",
    "hta-cpu-only",
    "hta-queue-rank0",
    "hta-sampled-rank-0",
    "hta-sampled-rank-1",
    "hta-trace-diff-control",
    "hta-trace-diff-test",
]


def path_of(name: str) -> Path:
    """The trace of that name, or a visible skip."""
    path = FOLDER / f"{name}.json.gz"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    return path


@cache
def raw(name: str) -> list[dict[str, Any]]:
    """The spans of a file as the standard library reads them, times as they are written."""
    with gzip.open(path_of(name)) as file:
        events = json.load(file, parse_float=Decimal)["traceEvents"]
    return [event for event in events if event["ph"] == "X"]


@cache
def timeline_of(name: str) -> Timeline:
    (timeline,) = kineto.read(path_of(name))
    return timeline
