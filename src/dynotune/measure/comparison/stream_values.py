"""Compute from the frames of a run what its worst stream got: rate, latency, and how latency grows."""

from __future__ import annotations

from collections.abc import Sequence

from dynotune.launch.records import streams
from dynotune.measure.comparison import drawn_blocks
from dynotune.schema.largest import Limit, Measured, Quantity

STALLED_FRAMES, STALLED_S = 10, 1.0
"""A stream that gives nothing for as many frames and as long up to the window's end ended or stalls."""
GROWTH_S = 60.0
PERCENTILE = 0.99


def measured(
    seen: streams.Seen, limits: Sequence[Limit], value: int, fps: float, window: tuple[float, float]
) -> tuple[list[Measured], list[str]]:
    """Return the quantities of the worst stream in the window, and what to know of single streams.

    Streams that are to be there and gave no frame have a rate of 0.
    """
    frames = seen.frames.within(*window)
    quantities = {limit.quantity for limit in limits}
    found, notes = [_rate(seen, frames, value, window)], _stalled(seen, value, fps, window)
    if "frame-latency-p99" in quantities:
        found.append(_latency(frames, window))
    if "latency-growth" in quantities:
        found.append(_growth(frames, window))
    return found, notes


def _rate(seen: streams.Seen, frames: streams.Frames, value: int, window: tuple[float, float]) -> Measured:
    """Count the frames of the slowest stream; if streams cannot be told apart, share the samples of all."""
    length_s = window[1] - window[0]
    if seen.source == "samples":
        num, name, error = float(frames.num_samples.sum()) / value, "", 1.0
    else:
        names = frames.stream.tolist()
        counts = {name: float(names.count(name)) for name in seen.names}
        counts |= {f"missing {number}": 0.0 for number in range(len(counts), value)}
        name, num = min(counts.items(), key=lambda item: item[1])
        error = 1.0
    low, high = max(0.0, num - error) / length_s, (num + error) / length_s
    return Measured(quantity="frame-rate", value=num / length_s, low=low, high=high, worst=name)


def _stalled(seen: streams.Seen, value: int, fps: float, window: tuple[float, float]) -> list[str]:
    """Report streams that gave nothing, or nothing more, while others went on."""
    if seen.source == "samples":
        return []
    notes, silent_s = [], max(STALLED_S, STALLED_FRAMES / fps)
    names = seen.names
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


def _growth(frames: streams.Frames, window: tuple[float, float]) -> Measured:
    """Return by how much the median latency grows in a minute (s)."""
    found = streams.growth(frames, window[0]) or streams.Growth(0.0, 0.0, 0.0)
    value, low, high = (bound * GROWTH_S for bound in found)
    return Measured(quantity="latency-growth", value=value, low=low, high=high)
