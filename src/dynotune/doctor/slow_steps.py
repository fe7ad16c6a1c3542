"""The slowest hundredth of the steps, by cause."""

from __future__ import annotations

from dataclasses import dataclass

from dynotune.doctor import policy
from dynotune.doctor.bounds import unless_waited
from dynotune.doctor.observation_view import ObservationView, needs
from dynotune.schema.diagnosis import Severity
from dynotune.schema.observation import SlowStep, Why

ORDER: tuple[Why, ...] = ("compilation", "work", "allocation", "garbage", "epoch", "loader")
"""If a step has several causes, the first of these counts: it is rarer, and delays the others."""
SHOWN = 3


@dataclass(frozen=True, slots=True)
class SlowSteps:
    """Slow steps of one cause, longest first, and the time of a usual step."""

    steps: list[SlowStep]
    usual_s: float
    share: float

    @property
    def severity(self) -> Severity:
        return policy.severity(self.share)

    def evidence(self) -> list[str]:
        longest = ", ".join(ms(step.step_s) for step in self.steps[:SHOWN])
        more = f" and {len(self.steps) - SHOWN} more" if len(self.steps) > SHOWN else ""
        return [f"{longest}{more}; a usual step takes {ms(self.usual_s)}"]

    def claim(self, what: str) -> str:
        steps = "One of the slowest steps" if len(self.steps) == 1 else f"{len(self.steps)} of the slowest steps"
        return f"{steps} {what}: up to {self.steps[0].step_s / self.usual_s:.1f} times as long as usual."


def slow_steps(view: ObservationView, why: Why) -> SlowSteps | None:
    """Return the slow steps of this cause; None if there are none."""
    timing = view.timing
    usual_s = timing.typical_step_s or timing.median_step_s
    needs(usual_s > 0, "what a usual step takes", "the steps have no length")
    steps = [
        step
        for step in timing.slow
        if step.step_s >= policy.SLOW_STEP * usual_s
        and next((cause for cause in ORDER if cause in step.causes), None) == why
    ]
    if not steps:
        return None
    lost_s = sum(step.step_s - usual_s for step in steps)
    longest = sorted(steps, key=lambda step: -step.step_s)
    return SlowSteps(longest, usual_s, unless_waited(view, min(1.0, lost_s / timing.window_s)))


def ms(duration_s: float) -> str:
    return f"{1000 * duration_s:.3g} ms"
