"""Predict which other batch sizes fit, from two or more batch sizes that were run.

Requested memory grows linearly with the batch: a constant, and a fixed amount per sample. The allocator's
overhead (rounding, cache, fragments) grows nearly so, in whole segments. The context, weights and workspaces
stay constant.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from dynotune.memory.allocator import SMALL_SEGMENT_BYTES, AllocatorSettings, OutOfMemory
from dynotune.memory.sequence import by_batch
from dynotune.schema.facts import Unknown
from dynotune.schema.memory import VERDICTS, Capacity, Fit, Moment, TermName
from dynotune.trace.snapshot import Lives

MARGIN_SHARE = 0.02
"""Share of the card that is left free: steps differ, and a driver's update takes some memory."""
CONSTANT: tuple[TermName, ...] = ("workspaces", "weights", "optimizer")
LEAST_GROWTH = 0.001
"""Relative growth of memory between two batches: below this, the argument does not change the batch on the
device."""
MOST_BATCH = 1 << 24
ONE = "one batch was run; --values arg.batch=8,16 predicts others"


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
    """Return what fits within `limit_bytes`: the batches that were run, and others predicted from two of
    them.

    Args:
        measured: measured peak memory by batch size.
        limit_bytes: memory of the card minus the memory of other processes.
        spread_bytes: error of the measured peaks, in bytes.
        histories: allocations of each batch; if those of two runs do not match, the prediction uses only the
            totals.
        settings: settings of the caching allocator.
        asked: further batch sizes to predict.
    """
    measured = dict(sorted(measured.items()))
    low, high = min(measured), max(measured)
    known = {batch: peak.total_bytes for batch, peak in measured.items()}
    growth = measured[high].requested_bytes - measured[low].requested_bytes
    matched = None
    if low != high and histories:
        matched = by_batch(histories[low], histories[high], (low, high), settings or AllocatorSettings())
    # Reserved memory comes in large pieces, so it shows growth only if the allocations are replayed.
    grows = growth > LEAST_GROWTH * measured[low].requested_bytes or (
        matched and matched(high) > matched(low)
    )
    if low != high and not grows:
        return Unknown(
            f"a batch of {high} takes no more memory than a batch of {low}: something else sets the peak"
        )
    constant, varying = _model(measured, matched)
    residual = max(abs(constant + varying(batch) - total) / total for batch, total in known.items())
    # The model's error on its own data widens the interval of every prediction.
    spread = max(spread_bytes, int(residual * limit_bytes))
    margin = max(int(MARGIN_SHARE * limit_bytes), spread)
    largest, room = 0, limit_bytes - margin - constant
    if low != high:
        most = high
        while varying(most) <= room and most < MOST_BATCH:
            most *= 2
        largest = bisect_right(range(1, most + 1), room, key=varying)

    def fit(batch: int) -> Fit:
        predicted = constant + varying(batch)
        needed = known.get(batch, predicted)
        fails = needed - spread > limit_bytes and not _fits_without_cache(
            matched, batch, limit_bytes - constant
        )
        return Fit(
            batch=batch,
            num_bytes=predicted,
            measured_bytes=known.get(batch, Unknown("it was not run")),
            verdict=VERDICTS[fails + (needed + margin > limit_bytes)],
        )

    wanted = {*measured, *asked, *([largest, largest + 1] if largest else [])} if low != high else {low}
    return Capacity(
        card=card,
        limit_bytes=limit_bytes,
        margin_bytes=margin,
        measured=measured,
        residual=residual,
        largest=largest or Unknown(ONE if low == high else "not even a batch of 1 fits"),
        fits=[fit(batch) for batch in sorted(wanted)],
    )


def _model(
    measured: Mapping[int, Moment], matched: Callable[..., int] | None
) -> tuple[int, Callable[[int], int]]:
    """Return the bytes of a process that no batch changes, and a function for those that depend on the batch.

    Matched allocations give the memory reserved for the recorded steps. Other reserved memory, such as that
    of the warm-up, is assumed to stay constant, at its maximum over the runs.
    """
    peaks = measured.values()
    constant = max(peak.of("context") for peak in peaks)
    if matched is not None:
        besides = max(peak.reserved_bytes - matched(at) for at, peak in measured.items())
        return constant + besides, matched
    constant += sum(max(peak.of(name) for peak in peaks) for name in CONSTANT)
    grown = [peak.reserved_bytes - sum(peak.of(name) for name in CONSTANT) for peak in peaks]
    if len(grown) == 1:
        return constant, lambda _: grown[0]
    slope, begin = np.polyfit(list(measured), grown, 1)
    return (
        constant,
        lambda batch: -(-max(0, round(begin + slope * batch)) // SMALL_SEGMENT_BYTES) * SMALL_SEGMENT_BYTES,
    )


def _fits_without_cache(matched: Callable[..., int] | None, batch: int, limit_bytes: int) -> bool:
    """Tell whether the batch runs once the allocator returns its cache, which takes time."""
    try:
        return matched is not None and matched(batch, limit_bytes) <= limit_bytes
    except OutOfMemory:
        return False
