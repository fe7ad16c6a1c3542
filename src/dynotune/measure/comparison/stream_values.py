"""Compute from the frames of a run what its worst stream got: rate, latency, and how latency grows."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dynotune.launch.records import streams
from dynotune.measure.comparison import drawn_blocks
from dynotune.schema.comparison import CONFIDENCE
from dynotune.schema.largest import Limit, Measured, Quantity

STALLED_FRAMES, STALLED_S = 10, 1.0
"""A stream that gives nothing for as many frames and as long up to the window's end ended or stalls."""
GROWTH_S = 60.0
PERCENTILE = 0.99


def measured(
    seen: streams.Seen, limits: Sequence[Limit], value: int, fps: float, window: tuple[float, float]
) -> tuple[list[Measured], list[str]]:
    """Return the quantities of the worst stream in the window, and what to know of single streams.

    Streams that are to be there and gave no frame have a rate of 0. Growth is left out where it is not known
    of each stream, unless one is shown to break its limit.
    """
    frames = seen.frames.within(*window)
    bounds = {limit.quantity: limit.bound for limit in limits}
    names = _names(seen, frames, value)
    found = [_rate(seen, frames, value, names, window)]
    notes = _stalled(seen, value, names, fps, window)
    if "frame-latency-p99" in bounds:
        found.append(_latency(frames, window))
    if "latency-growth" in bounds:
        grown = _growth(frames, names, window)
        known = [one for one in grown if one is not None]
        if known and (len(known) == len(grown) or max(one.low for one in known) > bounds["latency-growth"]):
            found.append(_worst_growth(known))
    return found, notes


def _names(seen: streams.Seen, frames: streams.Frames, value: int) -> list[str]:
    """Return the streams that count: those of the window, filled up to `value` by those that fell silent.

    A camera that connected anew before the window may have another name than it had; the old one is gone.
    """
    inside = sorted(set(frames.stream.tolist()))
    last_s = {name: float(seen.frames.end_s[seen.frames.stream == name].max()) for name in seen.names}
    silent = sorted(set(seen.names) - set(inside), key=lambda name: -last_s[name])
    return inside + silent[: max(0, value - len(inside))]


def _rate(
    seen: streams.Seen, frames: streams.Frames, value: int, names: list[str], window: tuple[float, float]
) -> Measured:
    """Count the frames of the slowest stream; if streams cannot be told apart, share the samples of all."""
    length_s = window[1] - window[0]
    if seen.source == "samples":
        num, name, error = float(frames.num_samples.sum()) / value, "", 1.0
    else:
        each = frames.stream.tolist()
        counts = {name: float(each.count(name)) for name in names}
        counts |= {f"missing {number}": 0.0 for number in range(len(counts), value)}
        name, num = min(counts.items(), key=lambda item: item[1])
        error = 1.0
    low, high = max(0.0, num - error) / length_s, (num + error) / length_s
    return Measured(quantity="frame-rate", value=num / length_s, low=low, high=high, worst=name)


def _stalled(
    seen: streams.Seen, value: int, names: list[str], fps: float, window: tuple[float, float]
) -> list[str]:
    """Report streams that gave nothing, or nothing more, while others went on."""
    if seen.source == "samples":
        return []
    notes, silent_s = [], max(STALLED_S, STALLED_FRAMES / fps)
    if len(names) < value:
        notes.append(f"{value - len(names)} of {value} streams gave no frame.")
    for name in names:
        own = seen.frames.end_s[seen.frames.stream == name]
        last_s = float(own[own < window[1]].max(initial=window[0] - silent_s))
        if window[1] - last_s > silent_s:
            notes.append(
                f"Stream {name} gave no frame in the last {window[1] - last_s:.1f} s: its source ended or "
                "stalls, or it is starved."
            )
    return notes


def _latency(frames: streams.Frames, window: tuple[float, float]) -> Measured:
    """Return the 99th percentile of latency of the worst stream, and its interval over blocks of time."""
    latencies_s = frames.end_s - frames.begin_s
    quantity: Quantity = "frame-latency-p99"
    worst = {name: _p99(latencies_s[frames.stream == name]) for name in set(frames.stream.tolist())}
    if not worst:  # no frame came at all, so each waited for as long as the window at least
        length_s = window[1] - window[0]
        return Measured(quantity=quantity, value=length_s, low=length_s, high=length_s)
    name = max(worst, key=lambda stream: worst[stream])
    chosen = frames.stream == name
    blocks = ((frames.end_s[chosen] - window[0]) / streams.BLOCK_S).astype(int)
    low, high = drawn_blocks.interval(latencies_s[chosen], blocks, _p99)
    return Measured(quantity=quantity, value=worst[name], low=low, high=high, worst=name)


def _p99(values: streams.Floats) -> float:
    import numpy as np

    return float(np.quantile(values, PERCENTILE, method="higher"))


def _growth(frames: streams.Frames, names: list[str], window: tuple[float, float]) -> list[Measured | None]:
    """Return by how much the median latency of each stream grows in a minute (s); None if not known.

    The low end is that of all streams together, since the worst of many is chosen.
    """
    found: list[Measured | None] = []
    for name in names:
        own = frames.where(frames.stream == name)
        grown = streams.growth(own, window[0])
        wary = streams.growth(own, window[0], confidence=1 - (1 - CONFIDENCE) / len(names))
        if grown is None or wary is None:
            found.append(None)
            continue
        value, low, high = (bound * GROWTH_S for bound in (grown.value, wary.low, grown.high))
        found.append(Measured(quantity="latency-growth", value=value, low=low, high=high, worst=name))
    return found


def _worst_growth(found: list[Measured]) -> Measured:
    """Return the growth that the worst streams show: the largest, each end of the interval by itself."""
    worst = max(found, key=lambda one: one.value)
    low, high = max(one.low for one in found), max(one.high for one in found)
    return msgspec.structs.replace(worst, low=min(low, worst.value), high=high)
