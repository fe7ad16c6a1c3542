"""What fits: other batches, by two or more that were run.

What the program asks for grows with the batch in proportion: a constant and so much a sample. What the allocator adds
(rounding, cache, fragments) does so nearly, in whole segments. The context, weights and workspaces stay as they are.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dynotune.memory.allocator import AllocatorSettings, OutOfMemory
from dynotune.memory.sequence import Allocations
from dynotune.schema.facts import Unknown
from dynotune.schema.memory import VERDICTS, Capacity, Fit, Moment, TermName
from dynotune.trace.snapshot import Lives

MARGIN_SHARE = 0.02
"""Of the card, left free: steps differ, and a driver's update takes some."""
SEGMENT_BYTES = 2 << 20
CONSTANT: tuple[TermName, ...] = ("workspaces", "weights", "optimizer")
LEAST_GROWTH = 0.001
"""Of the memory, between two batches: below it the argument does not change the batch on the device."""


def capacity(
    measured: Mapping[int, Moment],
    *,
    card: str,
    limit_bytes: int,
    spread_bytes: int = 0,
    histories: Mapping[int, Lives] | None = None,
    settings: AllocatorSettings | None = None,
    asked: Sequence[int] = (),
) -> Capacity | Unknown:
    """What fits within `limit_bytes`: the batches that were run, and by two of them any other.

    Args:
        measured: peaks by batch.
        limit_bytes: of the card, less what other processes hold.
        spread_bytes: by which the peaks themselves are uncertain.
        histories: allocations of each batch; where those of two runs do not match, the totals alone predict.
        settings: of the allocator.
        asked: further batches to predict.
    """
    measured = dict(sorted(measured.items()))
    batches = list(measured)
    model = _Model(measured, histories or {}, settings or AllocatorSettings())
    known = {batch: peak.total_bytes for batch, peak in measured.items()}
    residual, largest = 0.0, 0
    if len(batches) > 1:
        first, last = (measured[batch].requested_bytes for batch in model.ends)
        if last - first <= LEAST_GROWTH * first:  # reserved memory comes in large pieces
            return Unknown(
                f"a batch of {batches[-1]} takes no more memory than one of {batches[0]}: something else sets the peak"
            )
        residual = max(abs(model.bytes(batch) - total) / total for batch, total in known.items())
    # A model that misses what it was made from is that much less sure of the rest.
    spread = max(spread_bytes, int(residual * limit_bytes))
    margin = max(int(MARGIN_SHARE * limit_bytes), spread)
    if len(batches) > 1:
        # No more than twice what fits by requested bytes alone, which are the least of what is held.
        most = 2 * int(limit_bytes * (batches[-1] - batches[0]) / (last - first)) + 2
        largest = bisect_right(range(1, most), limit_bytes - margin, key=model.bytes)

    def fit(batch: int) -> Fit:
        needed = known[batch] if batch in known else model.bytes(batch)
        fails = needed - spread > limit_bytes and not model.fits_without_cache(batch, limit_bytes)
        return Fit(
            batch=batch,
            num_bytes=model.bytes(batch) if len(batches) > 1 else needed,
            measured_bytes=known.get(batch, Unknown("it was not run")),
            verdict=VERDICTS[fails + (needed + margin > limit_bytes)],
        )

    wanted = {*batches, *asked, *([largest, largest + 1] if largest else [])} if len(batches) > 1 else batches
    one = "one batch was run; --values arg.batch=8,16 predicts others"
    return Capacity(
        card=card,
        limit_bytes=limit_bytes,
        margin_bytes=margin,
        measured=measured,
        residual=residual,
        largest=largest or Unknown("not even a batch of 1 fits" if len(batches) > 1 else one),
        fits=[fit(batch) for batch in sorted(wanted)],
    )


@dataclass(frozen=True)
class _Model:
    """Bytes of the process for a batch."""

    measured: Mapping[int, Moment]
    histories: Mapping[int, Lives]
    settings: AllocatorSettings

    @property
    def ends(self) -> tuple[int, int]:
        return min(self.measured), max(self.measured)

    @cached_property
    def _sequence(self) -> Allocations | None:
        low, high = self.ends
        if low == high or not {low, high} <= self.histories.keys():
            return None
        return Allocations.of(self.histories[low], self.histories[high], self.ends, self.settings)

    @cached_property
    def _constant(self) -> int:
        """What does not grow: with the allocations known, what they do not tell.

        The sequence tells what the allocator reserves for the recorded steps. What it had reserved besides, say for
        the warm-up, is taken to stay: as much as it was at most in the runs.
        """
        peaks, sequence = self.measured.values(), self._sequence
        context = max(peak.of("context") for peak in peaks)
        if sequence is None:
            return context + sum(max(peak.of(name) for peak in peaks) for name in CONSTANT)
        return context + max(peak.reserved_bytes - sequence.reserved_bytes(at) for at, peak in self.measured.items())

    @cached_property
    def _line(self) -> tuple[float, float]:
        varying = [peak.reserved_bytes - sum(peak.of(name) for name in CONSTANT) for peak in self.measured.values()]
        slope, begin = np.polyfit(list(self.measured), varying, 1)
        return float(slope), float(begin)

    def bytes(self, batch: int) -> int:
        if self._sequence is not None:
            return self._constant + self._sequence.reserved_bytes(batch)
        slope, begin = self._line
        return self._constant + -(-max(0, round(begin + slope * batch)) // SEGMENT_BYTES) * SEGMENT_BYTES

    def fits_without_cache(self, batch: int, limit_bytes: int) -> bool:
        """Whether the batch runs once the allocator gives back what it holds for later, which takes time."""
        if self._sequence is None:
            return False
        try:
            self._sequence.reserved_bytes(batch, limit_bytes - self._constant)
        except OutOfMemory:
            return False
        return True
