"""What fits: other batches, by two or more that were run, and other processes beside one.

What the program asks for grows with the batch in proportion: a constant and so much a sample. What the allocator adds
(rounding, cache, fragments) does so nearly, in whole segments. The context, weights and workspaces stay as they are.

Two processes that hinder each other make 2 r / (1 + a) together, where r is what one makes alone; N make
N r / (1 + a (N - 1)). With a = 0 they do not meet; with a = 1 more of them make no more than one.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from dynotune.memory.sequence import Sequence as Allocations
from dynotune.schema.errors import UsageError
from dynotune.schema.facts import Unknown
from dynotune.schema.memory import VERDICTS, Capacity, Fit, Moment, Processes, TermName
from dynotune.trace.snapshot import Lives

MARGIN_SHARE = 0.02
"""Of the card, left free: steps differ, and a driver's update takes some."""
SEGMENT_BYTES = 2 << 20
CONSTANT: tuple[TermName, ...] = ("workspaces", "weights", "optimizer")
LEAST_GROWTH = 0.001
"""Of the memory, between two batches: below it the argument does not change the batch on the device."""
LEAST_GAIN = 0.05
"""Of what all make together: one process more that adds less is not worth its memory."""
MOST_PROCESSES = 1000
# fmt: off
USABLE_GIB = {
    "T4": 14.56, "V100-16GB": 15.77, "V100-32GB": 31.73, "RTX3090": 23.57, "RTX4090": 23.52, "A10": 22.06, "L4": 21.95,
    "L40S": 44.39, "A6000": 47.41, "A100-40GB": 39.38, "A100-80GB": 79.14, "H100-80GB": 79.10, "H200-141GB": 139.71,
    "RTX5090": 31.36,
}
# fmt: on
"""Memory of cards as CUDA reports it with ECC as they are delivered, the lowest seen in torch's messages."""


def card_bytes(text: str) -> int:
    """Memory of a card that is named (`H100-80GB`) or told by its size (`24GiB`).

    Raises:
        UsageError: no such card, and no size.
    """
    known = {name.lower(): size for name, size in USABLE_GIB.items()}
    name = text.lower().replace(" ", "").replace("_", "-")
    if name in known:
        return int(known[name] * 2**30)
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)g(i?)b?", name):
        return int(float(match[1]) * (2**30 if match[2] or name.endswith("g") else 10**9))
    raise UsageError(
        f"--gpu {text} is no card that dynotune knows, and no size.",
        hint=f"Give its memory: --gpu 24GiB. Known cards: {', '.join(USABLE_GIB)}.",
    )


def capacity(
    measured: Mapping[int, Moment],
    *,
    card: str,
    limit_bytes: int,
    histories: Mapping[int, Lives] | None = None,
    asked: Sequence[int] = (),
) -> Capacity | Unknown:
    """What fits within `limit_bytes`, by at least two batches that were run.

    Args:
        measured: peaks by batch.
        limit_bytes: of the card, less what other processes hold.
        histories: allocations of each batch; where those of two runs do not match, the totals alone predict.
        asked: further batches to predict.
    """
    measured = dict(sorted(measured.items()))
    batches = list(measured)
    if len(batches) < 2:
        return Unknown(f"every run had a batch of {batches[0]}: the argument does not change the batch")
    low, high = batches[0], batches[-1]
    first, last = measured[low].requested_bytes, measured[high].requested_bytes
    if last - first <= LEAST_GROWTH * first:  # reserved memory comes in large pieces
        return Unknown(f"a batch of {high} takes no more memory than one of {low}: something else sets the peak")
    model = _model(measured, Allocations.of(histories[low], histories[high], (low, high)) if histories else None)
    known = {batch: peak.total_bytes for batch, peak in measured.items()}
    residual = max(abs(model(batch) - total) / total for batch, total in known.items())
    # A model that misses what it was made from is that much less sure of the rest.
    margin = int(max(MARGIN_SHARE, residual) * limit_bytes)
    # No more than twice what fits by requested bytes alone, which are the least of what is held.
    most = 2 * int(limit_bytes * (high - low) / (last - first)) + 2
    largest = bisect_right(range(1, most), limit_bytes - margin, key=model)

    def fit(batch: int) -> Fit:
        needed = known.get(batch, predicted := model(batch))
        return Fit(
            batch=batch,
            num_bytes=predicted,
            measured_bytes=known.get(batch, Unknown("it was not run")),
            verdict=VERDICTS[(needed > limit_bytes) + (needed + margin > limit_bytes)],
        )

    return Capacity(
        card=card,
        limit_bytes=limit_bytes,
        margin_bytes=margin,
        measured=measured,
        residual=residual,
        largest=largest or Unknown("not even a batch of 1 fits"),
        fits=[fit(batch) for batch in sorted({*batches, *asked, *([largest, largest + 1] if largest else [])})],
    )


def _model(measured: Mapping[int, Moment], sequence: Allocations | None) -> Callable[[int], int]:
    """Bytes of the process for a batch.

    The sequence tells what the allocator reserves for the recorded steps. What it had reserved besides, say for the
    warm-up, is taken to stay: as much as it was at most in the runs.
    """
    peaks = measured.values()
    context = max(peak.of("context") for peak in peaks)
    if sequence is not None:
        besides = max(peak.reserved_bytes - sequence.reserved_bytes(batch) for batch, peak in measured.items())
        return lambda batch: context + besides + sequence.reserved_bytes(batch)
    constant = context + sum(max(peak.of(name) for peak in peaks) for name in CONSTANT)
    varying = [peak.reserved_bytes - sum(peak.of(name) for name in CONSTANT) for peak in peaks]
    slope, begin = np.polyfit(list(measured), varying, 1)
    return lambda batch: constant + -(-max(0, round(float(begin + slope * batch))) // SEGMENT_BYTES) * SEGMENT_BYTES


def processes(
    process_bytes: int | Unknown, limit_bytes: int, *, one_per_s: float, two_per_s: float, asked_per_s: float | None
) -> Processes:
    """How many processes one GPU carries, by memory and by throughput.

    Args:
        process_bytes: of one; `limit_bytes`: of the card, margin taken off.
        one_per_s, two_per_s: steps or samples of one process alone, and of two together.
        asked_per_s: that each process must make; None to add processes for as long as that pays.
    """
    hindrance = max(0.0, 2 * one_per_s / two_per_s - 1)

    def each(num: int) -> float:
        return one_per_s / (1 + hindrance * (num - 1))

    def pays(num: int) -> bool:
        if asked_per_s is not None:
            return each(num) >= asked_per_s
        return num == 1 or num * each(num) >= (1 + LEAST_GAIN) * (num - 1) * each(num - 1)

    by_throughput = next((num - 1 for num in range(1, MOST_PROCESSES) if not pays(num)), MOST_PROCESSES)
    by_memory = process_bytes if isinstance(process_bytes, Unknown) else max(0, limit_bytes // process_bytes)
    return Processes(
        one_per_s=one_per_s,
        two_per_s=two_per_s,
        asked_per_s=asked_per_s,
        by_memory=by_memory,
        by_throughput=by_throughput,
        most=by_throughput if isinstance(by_memory, Unknown) else min(by_throughput, by_memory),
    )
