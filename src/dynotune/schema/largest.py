"""The largest value of a placeholder that holds limits: runs at values, and what they showed and prove."""

from __future__ import annotations

from typing import Literal

import msgspec

from dynotune.schema.facts import Facts, Unknown
from dynotune.schema.run import Objective, RunSpec
from dynotune.schema.serving import Serving

Quantity = Literal[
    "frame-rate",
    "frame-latency-p99",
    "latency-growth",
    "throughput",
    "latency-p99",
    "call-latency-p99",
    "time-to-first-step",
    "memory",
    "energy",
]
"""What a limit bounds: for streams, the rate (frames/s) and the 99th percentile of latency (s) of the worst
stream, and by how much latency grows in a minute (s); else the objectives of a comparison, in samples or
steps per second, seconds, bytes, and J per sample or step."""

OF_FRAMES: tuple[Quantity, ...] = ("frame-rate", "frame-latency-p99", "latency-growth")
FLOORS: tuple[Quantity, ...] = ("frame-rate", "throughput")
"""Quantities that must not be smaller than their limit; all others must not be larger."""

MOST_VALUE = 1024
WINDOW_S = 10.0
Verdict = Literal["holds", "breaks", "open"]
End = Literal["proved", "ceiling", "none", "open", "budget"]


class Limit(msgspec.Struct, frozen=True):
    """A bound that each run at a value must hold, in the unit of its quantity."""

    quantity: Quantity
    bound: float

    @property
    def objective(self) -> Objective | None:
        """Return the objective of the run that measures it; None if frames show it."""
        return None if self.quantity in OF_FRAMES else self.quantity  # type: ignore[return-value]


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What a run showed of one quantity, with the 95% interval of the parts of its window.

    Args:
        low, high: the interval; both `value` where one run gives one number, such as memory.
        worst: name of the stream that it is of; "" without streams.
    """

    quantity: Quantity
    value: float
    low: float
    high: float
    worst: str = ""

    def verdict(self, limit: Limit) -> Verdict:
        """Return whether the whole interval is on one side of the limit."""
        least, most = (self.high, self.low) if limit.quantity in FLOORS else (self.low, self.high)
        sign = -1.0 if limit.quantity in FLOORS else 1.0
        if sign * most <= sign * limit.bound:
            return "holds"
        return "breaks" if sign * least > sign * limit.bound else "open"

    def leans(self, limit: Limit) -> bool:
        """Return whether the value itself holds the limit; latency that is not shown to grow does."""
        if limit.quantity == "latency-growth":
            return self.low <= limit.bound
        is_floor = limit.quantity in FLOORS
        return self.value >= limit.bound if is_floor else self.value <= limit.bound


class ValueRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the command at one value.

    Args:
        run: name of its folder, below the folder of the document.
        failed: why the run showed nothing, which counts as a limit that does not hold; "" if it did.
        cut_off: why the run did not get as far as a window, which shows nothing of the value; "" if it did.
        measured: quantities that the run showed; a limit of any other is left open.
        notes: what to know of this run, such as a stream that ended.
        wall_s: seconds from launch to end.
    """

    value: int
    run: str
    measured: list[Measured] = []
    failed: str = ""
    cut_off: str = ""
    serving: Serving | None = None
    notes: list[str] = []
    wall_s: float = 0.0

    def verdict(self, limits: list[Limit]) -> Verdict:
        """Return whether the run holds all limits, breaks one, or leaves it open."""
        if self.failed:
            return "breaks"
        found = [(self._of(limit), limit) for limit in limits]
        verdicts = [one.verdict(limit) if one is not None else "open" for one, limit in found]
        return "breaks" if "breaks" in verdicts else "open" if "open" in verdicts else "holds"

    def leans(self, limits: list[Limit]) -> bool:
        """Return whether all values themselves hold."""
        return not self.failed and not self.cut_off and not self.broken(limits)

    def broken(self, limits: list[Limit]) -> list[Limit]:
        """Return the limits whose values do not hold."""
        found = [(self._of(limit), limit) for limit in limits]
        return [limit for one, limit in found if one is not None and not one.leans(limit)]

    def _of(self, limit: Limit) -> Measured | None:
        return next((one for one in self.measured if one.quantity == limit.quantity), None)


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """One part that bounds the value: at `share` of what there is of it, `largest` would be the most.

    `name`: such as "cores" or "memory". `why`: a sentence with the figures.
    """

    name: str
    why: str
    share: float | None = None
    largest: int | None = None


class LargestValue(msgspec.Struct, frozen=True, kw_only=True):
    """Document `largest.json`: the largest value of a placeholder that holds all limits.

    Args:
        name: the placeholder's name: `streams` for `{streams}`.
        fps: frames per second that each stream is to have; None without streams.
        least, most: the values among which is searched.
        runs: all runs, in the order in which they were made.
        predicted: what bounds the value as the first run shows, the tightest bound first; Unknown without
            streams, or if their parts could not be told apart.
        end: `proved`: the largest value held in two runs or more, also by their spread, and `refuted` broke a
            limit in as many.
            `ceiling`: `most` holds. `none`: not even `least` holds. `open`: the most runs of a search, or
            of its values, did not decide. `budget`: the time was over before.
        largest: largest value that held in each of at least two runs; None if none did.
        refuted: smallest value above it that broke a limit in each of at least two runs.
        undecided: values between the two whose runs contradict each other or the limit lies in their
            intervals.
        binds: what binds at `refuted`, by its runs; None if nothing was refuted.
    """

    schema: str = "dynotune.largest/1"
    id: str = ""
    name: str
    run: RunSpec
    limits: list[Limit]
    fps: float | None = None
    window_s: float = WINDOW_S
    least: int = 1
    most: int = MOST_VALUE
    runs: list[ValueRun] = []
    predicted: list[Bound] | Unknown = Unknown("nothing was run yet")
    end: End | None = None
    largest: int | None = None
    refuted: int | None = None
    undecided: list[int] = []
    binds: Bound | None = None
    warnings: list[str] = []
    facts: Facts = {}

    @property
    def prediction(self) -> int | None:
        """Return the value that the first run predicts; None if it does not tell."""
        if isinstance(self.predicted, Unknown):
            return None
        return min((bound.largest for bound in self.predicted if bound.largest is not None), default=None)
