"""What another batch would hold, from two or more that were run: each term a constant and so much a sample.

What the program asks for grows with the batch in proportion. What the allocator adds (rounding, cache, fragments) does
so nearly, in whole segments. The context and the libraries' workspaces stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from dynotune.memory.accounting import ORDER
from dynotune.memory.sequence import Sequence as Allocations
from dynotune.schema.errors import UsageError
from dynotune.schema.facts import Unknown
from dynotune.schema.memory import Capacity, Fit, Measured, Moment, TermModel, Verdict

MARGIN_SHARE = 0.02
"""Of the card, left free: steps differ, and a driver's update takes some."""
SEGMENT_BYTES = 2 << 20
CONSTANT = ("context", "workspaces", "weights", "optimizer")
LEAST_GROWTH = 0.001
"""Of the memory, between two batches: below it the argument does not change the batch on the device."""
MOST_BATCH = 1 << 30
USABLE_GIB = {
    "T4": 14.56,
    "V100-16GB": 15.77,
    "V100-32GB": 31.73,
    "RTX3090": 23.57,
    "RTX4090": 23.52,
    "A10": 22.06,
    "L4": 21.95,
    "L40S": 44.39,
    "A6000": 47.41,
    "A100-40GB": 39.38,
    "A100-80GB": 79.14,
    "H100-80GB": 79.10,
    "H200-141GB": 139.71,
    "RTX5090": 31.36,
}
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


def verdict(num_bytes: float, limit_bytes: int, margin_bytes: int) -> Verdict:
    """Whether so much fits within the limit, with the margin left."""
    if num_bytes > limit_bytes:
        return "does-not-fit"
    return "fits" if num_bytes + margin_bytes <= limit_bytes else "too-close"


def capacity(
    measured: Sequence[Measured],
    *,
    card: str,
    limit_bytes: int,
    sequence: Allocations | None = None,
    asked: Sequence[int] = (),
) -> Capacity | Unknown:
    """What fits within `limit_bytes`, by at least two batches that were run.

    Args:
        limit_bytes: of the card, less what other processes hold.
        sequence: the allocations of two runs, where they match; else the terms alone predict.
        asked: further batches to predict.
    """
    batches = sorted({one.batch for one in measured})
    if len(batches) < 2:
        return Unknown(f"every run had a batch of {batches[0]}: the argument does not change the batch")
    runs = sorted(measured, key=lambda one: one.batch)
    asked_for = [one.peak.requested_bytes for one in runs]  # reserved memory comes in large pieces
    if asked_for[-1] - asked_for[0] < LEAST_GROWTH * asked_for[0]:
        return Unknown(
            f"a batch of {batches[-1]} takes no more memory than one of {batches[0]}: something else sets the peak"
        )
    model = _Model(runs, sequence)
    known = {one.batch: _total(one.peak) for one in runs}
    errors = [abs(model.num_bytes(batch) - total) / total for batch, total in known.items()]
    # A model that misses what it was made from is that much less sure of the rest.
    margin = int(max(MARGIN_SHARE, *errors) * limit_bytes)
    largest = _largest(model, limit_bytes - margin)
    return Capacity(
        card=card,
        limit_bytes=limit_bytes,
        margin_bytes=margin,
        measured=list(runs),
        terms=model.terms,
        residual=max(errors),
        largest=largest or Unknown("not even a batch of 1 fits"),
        fits=[
            Fit(
                batch=batch,
                num_bytes=(num := model.num_bytes(batch)),
                measured_bytes=known.get(batch, Unknown("it was not run")),
                verdict=verdict(known.get(batch, num), limit_bytes, margin),
            )
            for batch in sorted({*batches, *asked, *([largest, largest + 1] if largest else [])})
        ],
    )


class _Model:
    """Bytes of the process for a batch.

    The sequence tells what the allocator reserves for the recorded steps. What it had reserved besides, say for the
    warm-up, is taken to stay: as much as it was at most in the runs.
    """

    def __init__(self, runs: Sequence[Measured], sequence: Allocations | None) -> None:
        self.terms = _fitted(runs)
        self._sequence = sequence
        self._outside = max(one.peak.of("context") for one in runs)
        self._besides = 0
        if sequence is not None:
            self._besides = max(one.peak.reserved_bytes - sequence.reserved_bytes(one.batch) for one in runs)

    def num_bytes(self, batch: int) -> int:
        if self._sequence is not None:
            return self._outside + self._besides + self._sequence.reserved_bytes(batch)
        inside = sum(
            term.constant_bytes + term.per_sample_bytes * batch for term in self.terms if term.name != "context"
        )
        return self._outside + -(-max(0, round(inside)) // SEGMENT_BYTES) * SEGMENT_BYTES


def _total(moment: Moment) -> int:
    return moment.reserved_bytes if isinstance(moment.process_bytes, Unknown) else moment.process_bytes


def _fitted(runs: Sequence[Measured]) -> list[TermModel]:
    """Least squares for each term; none shrinks with the batch, and of constant ones the highest counts."""
    num = len(runs)
    mean_batch = sum(one.batch for one in runs) / num
    spread = sum((one.batch - mean_batch) ** 2 for one in runs)
    found = []
    for name in ORDER:
        sizes = [one.peak.of(name) for one in runs]
        if not any(sizes):
            continue
        mean = sum(sizes) / num
        slope = sum((one.batch - mean_batch) * size for one, size in zip(runs, sizes, strict=True)) / spread
        if name in CONSTANT or slope <= 0:
            found.append(TermModel(name=name, constant_bytes=float(max(sizes)), per_sample_bytes=0.0))
        else:
            found.append(TermModel(name=name, constant_bytes=mean - slope * mean_batch, per_sample_bytes=slope))
    return found


def _largest(model: _Model, limit_bytes: int) -> int:
    """The largest batch whose prediction is within the limit; 0 where none is."""
    low, high = 0, 1
    while high < MOST_BATCH and model.num_bytes(high) <= limit_bytes:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if model.num_bytes(middle) <= limit_bytes else (low, middle)
    return low
