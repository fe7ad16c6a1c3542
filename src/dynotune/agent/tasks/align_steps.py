"""Give the same number to the same step of all ranks, which an agent that came late counts from where it
came."""

from __future__ import annotations

from .task import Task


class AlignSteps(Task):
    """Leave the first steps out of this process's count, as many as the parent says, which sees all ranks."""

    event = "aligned"

    def begin(self, num_steps: int) -> int:
        skipped = min(num_steps, int(self.order["skip"].get(str(self.program.pid), 0)))
        if skipped:
            self.program.steps.skip(skipped)
        self.complete(skipped=skipped)
        return num_steps - skipped
