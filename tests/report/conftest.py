"""Comparisons as they come out of a measurement, for the tests of what is shown of them."""

from __future__ import annotations

from typing import Any

import pytest

from dynotune.schema.comparison import ArmSummary, Comparison, Pair
from dynotune.schema.setting import Setting

from ..fakes import of_run


@pytest.fixture
def comparison():
    """Makes a comparison that found its candidate faster, with changes."""
    return _comparison


def _comparison(**changes: Any) -> Comparison:
    fields: dict[str, Any] = {
        "id": "c1",
        "command": ["python", "train.py", "my photographs"],
        "candidate_settings": [Setting("loader.num_workers", 2), Setting("host.num_threads", 1)],
        "verdict": "faster",
        "speedup": 1.4162,
        "ci": (1.3811, 1.4523),
        "num_pairs": 4,
        "step": "one batch drawn, one optimizer step",
        "warmup_steps": 12,
        "window_steps": 30,
        "baseline": ArmSummary(samples_per_s=281.4, median_step_s=0.0568, time_to_first_step_s=1.91),
        "candidate": ArmSummary(samples_per_s=398.6, median_step_s=0.0399, time_to_first_step_s=2.04),
        "pairs": [Pair("baseline", 0.00355, 0.00251)],
    }
    return of_run(Comparison, **(fields | changes))
