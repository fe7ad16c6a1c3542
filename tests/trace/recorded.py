"""The recorded traces that tests read where they are at hand. `DYNOTUNE_TRACES` names their folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

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
