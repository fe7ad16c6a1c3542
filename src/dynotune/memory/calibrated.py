"""What another batch would hold, from two or more that were run: each term a constant and so much a sample.

What the program asks for grows with the batch in proportion. What the allocator adds (rounding, cache, fragments) does
so nearly, in whole segments. The context and the libraries' workspaces stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from dynotune.memory.accounting import ORDER
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
    measured: Sequence[Measured], *, card: str, limit_bytes: int, margin_bytes: int | None = None
) -> Capacity | Unknown:
    """What fits within `limit_bytes`, by at least two batches that were run.

    Args:
        limit_bytes: of the card, less what other processes hold.
        margin_bytes: None for 2% of it.
    """
    batches = sorted({one.batch for one in measured})
    if len(batches) < 2:
        return Unknown(f"every run had a batch of {batches[0]}: the argument does not change the batch")
    runs = sorted(measured, key=lambda one: one.batch)
    totals = [_total(one.peak) for one in runs]
    asked_for = [one.peak.requested_bytes for one in runs]  # reserved memory comes in large pieces
    if asked_for[-1] - asked_for[0] < LEAST_GROWTH * asked_for[0]:
        return Unknown(
            f"a batch of {batches[-1]} takes no more memory than one of {batches[0]}: something else sets the peak"
        )
    terms = _fitted(runs)
    margin = int(MARGIN_SHARE * limit_bytes) if margin_bytes is None else margin_bytes
    errors = [abs(_predicted(terms, one.batch) - total) / total for one, total in zip(runs, totals, strict=True)]
    # A model that misses what it was made from is that much less sure of the rest.
    margin = max(margin, int(max(errors) * limit_bytes))
    largest = _largest(terms, limit_bytes - margin)
    asked = sorted({*batches, *([largest, largest + 1] if largest else [])})
    by_batch = {one.batch: total for one, total in zip(runs, totals, strict=True)}
    fits = [
        Fit(
            batch=batch,
            num_bytes=(num := _predicted(terms, batch)),
            measured_bytes=by_batch.get(batch, Unknown("it was not run")),
            verdict=verdict(by_batch.get(batch, num), limit_bytes, margin),
        )
        for batch in asked
    ]
    return Capacity(
        card=card,
        limit_bytes=limit_bytes,
        margin_bytes=margin,
        measured=list(runs),
        terms=terms,
        residual=max(errors),
        largest=largest or Unknown("not even a batch of 1 fits"),
        fits=fits,
        processes_by_memory=max(0, (limit_bytes - margin) // totals[0]),
    )


def predicted_bytes(found: Capacity, batch: int) -> int:
    """What a process with this batch would hold."""
    return _predicted(found.terms, batch)


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


def _predicted(terms: Sequence[TermModel], batch: int) -> int:
    """The allocator gets whole segments; the context is what it is."""
    outside = sum(term.constant_bytes for term in terms if term.name == "context")
    inside = sum(term.constant_bytes + term.per_sample_bytes * batch for term in terms if term.name != "context")
    return int(outside) + -(-max(0, round(inside)) // SEGMENT_BYTES) * SEGMENT_BYTES


def _largest(terms: Sequence[TermModel], limit_bytes: int) -> int:
    """The largest batch whose prediction is within the limit; 0 where none is."""
    low, high = 0, MOST_BATCH
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _predicted(terms, middle) <= limit_bytes else (low, middle - 1)
    return low
