"""Delay tests: parts of a step were delayed on purpose, and the step's answer was timed."""

from typing import Literal

import msgspec

DelayedPart = Literal["host", "device", "loader", "transfer", "rank", "function"]
CRITICAL_SLOPE = 0.5
"""From this slope on, a part is critical: a step becomes longer by at least half of its delay."""


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """How a step answered one delay.

    Args:
        delay_s: seconds by which the part was delayed in each step, as read back.
        longer_s: seconds by which a step became longer.
        ci: interval of `longer_s` at 95%.
        num_blocks: number of blocks, each with two stretches with the delay and two without.
    """

    delay_s: float
    longer_s: float
    ci: tuple[float, float]
    num_blocks: int

    @property
    def slope(self) -> float:
        return self.longer_s / self.delay_s


class DelayTest(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a step to delays of one part.

    Args:
        part: the delayed part.
        place: of a function, `file:line name`; of a rank, its number.
        slope: lengthening of a step over the smallest delay; about 1 if the step waits for the part, and
            about 0 if other parts hide the delay.
        ci: interval of `slope` at 95%.
        slack_s: seconds of a delay that other parts hide, from the largest delay; None if the step showed no
            answer to it, so the slack is larger than that delay.
        answers: by delay, the smallest first.
    """

    part: DelayedPart
    place: str = ""
    slope: float
    ci: tuple[float, float]
    slack_s: float | None
    answers: list[Answered]

    @property
    def is_critical(self) -> bool | None:
        """Tell whether the part is critical; None if the interval contains the slope that decides."""
        if self.ci[0] < CRITICAL_SLOPE < self.ci[1]:
            return None
        return self.slope > CRITICAL_SLOPE


class DelayTests(msgspec.Struct, frozen=True, kw_only=True, tag="delay-tests"):
    """All delay tests of one live run.

    Args:
        step_s: seconds of a step without a delay, in the tests' own stretches.
        tests: parts that could be tested.
        untested: by part, why other parts could not be tested.
        wall_s: duration of the tests.
    """

    step_s: float
    tests: list[DelayTest]
    untested: dict[str, str] = {}
    wall_s: float = 0.0
