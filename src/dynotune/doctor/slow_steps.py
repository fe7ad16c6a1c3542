"""The slowest hundredth of the steps by cause, for rules."""

from collections.abc import Sequence
from dataclasses import dataclass

from dynotune.doctor import policy
from dynotune.doctor.bounds import unless_waited
from dynotune.doctor.declaration import Judgement
from dynotune.doctor.observation_view import ObservationView, needs
from dynotune.schema.setting import Setting
from dynotune.schema.timing import SlowStep, Why
from dynotune.schema.trace_summary import Place
from dynotune.text import words

ORDER: tuple[Why, ...] = ("compilation", "work", "allocation", "garbage", "epoch", "loader")
"""If a step has several causes, the first of these counts: it is rarer, and delays the others."""
SHOWN = 3


@dataclass(frozen=True, slots=True)
class SlowSteps:
    """Slow steps of one cause, longest first, and the time of a usual step."""

    steps: list[SlowStep]
    usual_s: float
    share: float

    def evidence(self) -> list[str]:
        longest = ", ".join(ms(step.step_s) for step in self.steps[:SHOWN])
        more = f" and {len(self.steps) - SHOWN} more" if len(self.steps) > SHOWN else ""
        return [f"{longest}{more}; a usual step takes {ms(self.usual_s)}"]

    def judgement(
        self,
        did: str,
        remedy: str = "",
        *,
        where: Place | None = None,
        candidates: Sequence[Setting] | None = None,
    ) -> Judgement:
        """Return a judgement on these steps; `did` completes the sentence."""
        steps = (
            "One of the slowest steps" if len(self.steps) == 1 else f"{len(self.steps)} of the slowest steps"
        )
        return Judgement(
            claim=f"{steps} {did}: up to {self.steps[0].step_s / self.usual_s:.1f} times as long as usual.",
            kind="jitter",
            severity=policy.severity(self.share),
            share=self.share,
            evidence=self.evidence(),
            where=where,
            candidates=candidates,
            remedy=remedy,
        )


def usual_step_s(view: ObservationView) -> float:
    """Return the seconds of a usual step. Raises Missing: the steps have no length."""
    usual_s = view.timing.typical_step_s or view.timing.median_step_s
    needs(usual_s > 0, "what a usual step takes", "the steps have no length")
    return usual_s


def slow_steps(view: ObservationView, why: Why) -> SlowSteps | None:
    """Return the slow steps of this cause; None if there are none."""
    timing = view.timing
    usual_s = usual_step_s(view)
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
    """Write a time in milliseconds; from a second on in seconds, where `3e+03 ms` would be read by nobody."""
    return words.duration(duration_s) if duration_s >= 1.0 else f"{1000 * duration_s:.3g} ms"
