"""Where a trace or a window begins: the plan says it, or a file in the run folder while the program runs.

Several ranks must begin with the same step, and whoever watches knows when their steps are steady; so the file tells.
"""

from __future__ import annotations

import json
import os
from time import perf_counter

TOLD_FILE = "record-from.json"
# Whoever tells leaves half a second, so looking now and then is enough.
LOOK_S = 0.05
MOST_STEPS_BETWEEN_LOOKS = 100


class Told:
    """`step`: steps before it begins, None while that is not known; `num_steps`: steps of it.

    Args:
        folder: where the file will lie.
    """

    def __init__(self, folder: str, step: int | None, num_steps: int | None) -> None:
        self._folder = folder
        self.step, self.num_steps = step, num_steps
        self._looked_s, self._looked_at = perf_counter(), 0

    def look(self, num_steps: int) -> int:
        """`num_steps` have ended, the last one now. The number at which to ask again, or at which it begins."""
        now, steps = perf_counter(), max(1, num_steps - self._looked_at)
        step_s = (now - self._looked_s) / steps
        self._looked_s, self._looked_at = now, num_steps
        try:
            with open(os.path.join(self._folder, TOLD_FILE), encoding="utf-8") as file:
                told = json.load(file)
        except FileNotFoundError:
            return num_steps + max(1, min(MOST_STEPS_BETWEEN_LOOKS, int(LOOK_S / max(step_s, 1e-9))))
        self.step, self.num_steps = int(told["step"]), int(told["num_steps"])
        return max(self.step, num_steps + 1)
