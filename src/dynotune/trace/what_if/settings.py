"""Predict the saving of a setting as a range: replay the timeline with the setting's effect.

A setting changes the duration of some device work and the remaining part of the host's own time. Each factor
is a
range: from the most that hardware and compiler allow to the least that small or memory-bound work gains. If
the host sets the pace, faster kernels save nothing, and vice versa; the replay shows which of the two sets
the pace.

The saving of compiling is not predicted: of two measurements, one was above the predicted range and one far
below.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dynotune.schema.attribution import Predicted
from dynotune.trace.facts import intervals
from dynotune.trace.facts.copies import kind_of, uploads
from dynotune.trace.facts.fusion import FUSABLE
from dynotune.trace.facts.host_names import MODULE, named
from dynotune.trace.facts.idle import loader_spans
from dynotune.trace.facts.kernel_names import CLASSES, is_of_half, is_slow_product, tensor_cores_of
from dynotune.trace.facts.kernels import classes_of
from dynotune.trace.facts.optimizer_updates import updates
from dynotune.trace.timeline import UNKNOWN, DeviceKind, HostKind, Timeline, told_by_name
from dynotune.trace.what_if.engine import Change, Replay, replay

Factors = NDArray[np.float64]


class Range(NamedTuple):
    """Range of the factor by which a setting multiplies a time: the most helpful and the least helpful
    case."""

    most: float
    least: float


# Peaks of Hopper's data sheet are 1 : 7 : 15 for float32, TF32 and half types without sparsity; a product of
# a few hundred rows is bound by memory, where half types halve the bytes.
TF32_OF_FP32 = Range(0.17, 0.5)
HALF_OF_FP32 = Range(0.09, 0.35)
HALF_OF_TF32 = Range(0.45, 0.8)
HALF_OF_POINTWISE = Range(0.55, 1.1)
"""Autocast keeps sums and norms in float32, and adds conversions."""
CASTS = Range(0.7, 2.0)
"""Operators that autocast adds per product: conversions of inputs, weights and gradients. A converted weight
is kept until the region ends, and consecutive products need no conversion in between."""
LAYOUT = Range(0.0, 0.3)
NHWC_CONVOLUTION = Range(0.6, 1.0)
FUSED_OPTIMIZER_HOST = Range(0.05, 0.35)
FUSED_OPTIMIZER = Range(0.3, 0.85)
PINNED_COPY = Range(0.25, 0.6)
"""Pageable copies go through a staging buffer of the driver."""
WAIT = Range(0.0, 0.5)
"""Factor of the wait for a loader with enough workers, if each is as fast as the present workers."""
RECORDED = Range(2.8, 1.7)
"""Factor by which a host is faster without the recorder and its stacks, for programs that do not show the
factor: the quartiles of 21 unseen programs that the recorder slowed by more than half."""

_PRODUCTS = tuple(CLASSES.index(name) for name in ("matmul", "convolution"))
_POINTWISE = tuple(CLASSES.index(name) for name in FUSABLE)
_LAYOUT, _CONVOLUTION = CLASSES.index("layout"), CLASSES.index("convolution")
_BACKWARD = re.compile(r"autograd::engine::evaluate_function")


def predictions(timeline: Timeline, wait_s: float | None, faster: float) -> dict[str, Predicted]:
    """Return the predicted saving of each setting. If all values that are large enough save the same, the key
    is the knob alone. Settings without an effect are left out.

    This function does not check whether the program already has the setting, or whether it runs with the
    setting.

    Args:
        wait_s: as for `engine.retimed`. faster: the factor that `engine.retimed` returns.
    """
    again = replay(timeline, wait_s, faster)
    if again is None:
        return {}
    parts, found = _Parts(timeline), {}
    unseen = faster < RECORDED.most and again.is_paced_by_device(RECORDED.most)
    for setting, change in _CHANGES.items():
        if (changes := change(parts)) is not None:
            found[setting] = _predicted(again, *changes, unseen)
    return found


def _predicted(again: Replay, most: Change, least: Change, unseen: bool) -> Predicted:
    speeds = RECORDED if unseen else (None, None)
    saved = [again.saved(change, faster) for change, faster in zip((most, least), speeds, strict=True)]
    return Predicted(low=min(saved), high=max(saved))


class _Parts:
    """Work in a timeline that settings change: device spans (rows) and intervals of the host."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        device = timeline.device
        self._classes = classes_of(timeline)
        product = np.isin(self._classes, _PRODUCTS)
        half = self._told(is_of_half)
        self.fp32_products = product & self._told(is_slow_product) & ~half
        self.tf32_products = product & self._told(lambda name: tensor_cores_of(name) == 1) & ~half
        calls, begins = updates(timeline)
        self.optimizer = intervals.union(begins, timeline.host.end_ns[calls])
        launched = timeline.host.start_ns[device.launch]
        known = device.launch != UNKNOWN
        self.of_optimizer = known & (intervals.covered(self.optimizer, launched, launched + 1) > 0)
        self.pointwise = np.isin(self._classes, _POINTWISE) & ~half & ~self.of_optimizer
        self.layout, self.convolution = self._classes == _LAYOUT, self._classes == _CONVOLUTION
        self.uploads = uploads(timeline)
        self.pageable = self.uploads & self._told(lambda name: kind_of(name) == ("HtoD", True))
        self.loads = len(loader_spans(timeline)) > 0

    def _told(self, tell: Callable[[str], object]) -> NDArray[np.bool_]:
        return told_by_name(self.timeline.names, self.timeline.device.name, tell)

    def model(self) -> intervals.Set:
        """Return the intervals of model code on any thread, forward and backward, without optimizers'
        updates."""
        host = self.timeline.host
        modules = named(self.timeline, MODULE, HostKind.PYTHON)
        rows = np.append(modules, named(self.timeline, _BACKWARD, HostKind.OPERATOR))
        if not len(rows):
            rows = np.flatnonzero(host.kind == HostKind.OPERATOR)
        return intervals.difference(intervals.union_of(host, rows), self.optimizer)

    def cast(self) -> tuple[intervals.Set, Range]:
        """Return the intervals of model code, and the factor by which autocast's conversions lengthen its
        host time."""
        kernels = (self.timeline.device.kind == DeviceKind.KERNEL) & ~self.of_optimizer
        products = (self.fp32_products | self.tf32_products) & ~self.of_optimizer
        share = float(products.sum() / max(1, kernels.sum()))
        return self.model(), Range(*(1 + share * casts for casts in CASTS))

    def factors(self, *parts: tuple[NDArray[np.bool_], float]) -> Factors:
        found = np.ones(len(self.timeline.device), dtype=np.float64)
        for rows, factor in parts:
            found[rows] *= factor
        return found


Changes = tuple[Change, Change] | None


def _both(
    parts: _Parts,
    *of_device: tuple[NDArray[np.bool_], Range],
    host: tuple[intervals.Set, Range] | None = None,
    without: str = "",
) -> Changes:
    """Return the most and the least helpful change; None if the timeline has no work that the change
    affects."""
    if not any(rows.any() for rows, _ in of_device) and host is None and not without:
        return None

    def change(at: int) -> Change:
        lengths = parts.factors(*((rows, factor[at]) for rows, factor in of_device))
        return Change(
            without=without, lengths=lengths, host=() if host is None else ((host[0], host[1][at]),)
        )

    return change(0), change(1)


def _autocast(parts: _Parts) -> Changes:
    if not parts.fp32_products.any() and not parts.tf32_products.any():
        return None
    products = (parts.fp32_products, HALF_OF_FP32), (parts.tf32_products, HALF_OF_TF32)
    return _both(parts, *products, (parts.pointwise, HALF_OF_POINTWISE), host=parts.cast())


def _channels_last(parts: _Parts) -> Changes:
    if not parts.convolution.any():
        return None
    return _both(parts, (parts.layout, LAYOUT), (parts.convolution, NHWC_CONVOLUTION))


def _fused(parts: _Parts) -> Changes:
    if not len(parts.optimizer):
        return None
    return _both(parts, (parts.of_optimizer, FUSED_OPTIMIZER), host=(parts.optimizer, FUSED_OPTIMIZER_HOST))


_CHANGES: dict[str, Callable[[_Parts], Changes]] = {
    "matmul.fp32_precision=high": lambda parts: _both(parts, (parts.fp32_products, TF32_OF_FP32)),
    "precision.autocast=bf16": _autocast,
    "layout.channels_last=true": _channels_last,
    "optimizer.fused=true": _fused,
    "loader.pin_memory=true": lambda parts: _both(parts, (parts.pageable, PINNED_COPY)),
    "transfer.non_blocking=true": lambda parts: (
        _both(parts, without="h2d-blocking") if parts.uploads.any() else None
    ),
    "loader.num_workers": lambda parts: (
        (Change(loader=WAIT.most), Change(loader=WAIT.least)) if parts.loads else None
    ),
}
