"""Read from records which frames of which streams are done, and derive what the frames took."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from dynotune.launch.records.record import Record
from dynotune.schema.events import FramesDone, Window
from dynotune.schema.serving import Serving

if TYPE_CHECKING:
    import numpy as np

    Floats = np.ndarray[tuple[int], np.dtype[np.float64]]
    Texts = np.ndarray[tuple[int], np.dtype[np.str_]]

BLOCK_S = 1.0
"""Length of the parts of a window: frames closer to each other are not independent."""
OBSERVED_BLOCK_S = 0.25
FEWEST_BLOCKS = 6
FEWEST_FRAMES = 20


class Frames(NamedTuple):
    """The frames of one source in one process: a row each, by the time at which they were done.

    `stream`, `model`: names. `begin_s`, `end_s`: CLOCK_MONOTONIC. `begin_cpu_s`, `end_cpu_s`: CPU time of the
    thread. `num_samples`: 1 if unknown.
    """

    stream: Texts
    model: Texts
    begin_s: Floats
    end_s: Floats
    begin_cpu_s: Floats
    end_cpu_s: Floats
    num_samples: Floats

    def where(self, chosen: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Frames:
        columns: Any = (column[chosen] for column in self)
        return Frames(*columns)

    def within(self, begin_s: float, end_s: float) -> Frames:
        return self.where((self.end_s >= begin_s) & (self.end_s < end_s))


class Seen(NamedTuple):
    """Frames of all processes: of streams as they count, and of all calls of the model."""

    source: Literal["marks", "threads", "samples"]
    frames: Frames
    calls: Frames

    @property
    def names(self) -> list[str]:
        return sorted(set(self.frames.stream.tolist()))


def seen(records: Sequence[Record], value: int, window: tuple[float, float] | None = None) -> Seen | None:
    """Return the frames that the records show; None without any.

    Frames that the program marks count; without marks, calls of the model that takes most of the time: as
    streams, if as many threads make them as there are to be streams, else by their samples. Threads of a pool
    are no streams.

    Args:
        value: how many streams there are to be.
        window: where threads are counted: one that only warms a model up before is no stream.
    """
    marked, calls = (_frames(records, source) for source in ("marked", "call"))
    if len(calls.model):
        times = {
            name: float((calls.end_s - calls.begin_s)[calls.model == name].sum()) for name in calls.model
        }
        calls = calls.where(calls.model == max(times, key=lambda name: times[name]))
    if len(marked.stream):
        return Seen("marks", marked, calls)
    if not len(calls.stream):
        return None
    import numpy as np

    every = set(calls.stream.tolist())
    inside = every if window is None else set(calls.within(*window).stream.tolist())
    names = inside if len(inside) == value else every - _ended_before(calls, inside)
    if len(names) != value or names & _pooled(records):
        return Seen("samples", calls, calls)
    calls = calls.where(np.isin(calls.stream, sorted(names)))
    return Seen("threads", calls, calls)


def _ended_before(calls: Frames, inside: set[str]) -> set[str]:
    """Return the threads that made their last call before any of those `inside` made its first."""
    first_s = min((float(calls.begin_s[calls.stream == name][0]) for name in inside), default=-math.inf)
    return set(calls.stream.tolist()) - set(calls.stream[calls.end_s > first_s].tolist())


def _pooled(records: Sequence[Record]) -> set[str]:
    """Return the threads that are workers of a pool."""
    return {
        _thread(record, event.streams[number])
        for record in records
        for event in record.all(FramesDone)
        if event.source == "call"
        for number in event.pooled
        if number < len(event.streams)
    }


def begin_s(records: Sequence[Record], value: int, *, patience_s: float, marks: bool = False) -> float | None:
    """Return when the last stream gave its first frame; None while streams are missing that may still come.

    A stream that gives no frame within `patience_s` of the last new one is not waited for. `marks`: wait for
    marked frames, whatever models are called before.
    """
    sources: dict[str, dict[str, float]] = {"marked": {}, "call": {}}
    last_s = 0.0
    for record in records:
        for event in record.all(FramesDone):
            firsts = sources[event.source]
            for number, name in enumerate(event.streams):
                key = _thread(record, name) if event.source == "call" else name
                if key not in firsts and number in event.stream:
                    firsts[key] = event.end_s[event.stream.index(number)]
            last_s = max(last_s, event.end_s[-1] if event.end_s else 0.0)
    firsts = sources["marked"] or ({} if marks else sources["call"])
    if not firsts:
        return None
    latest_s = max(firsts.values())
    is_complete = len(firsts) >= value or last_s - latest_s > patience_s
    return latest_s if is_complete else None


def _thread(record: Record, name: str) -> str:
    return f"thread {name} of process {record.pid}"


def _frames(records: Sequence[Record], source: str) -> Frames:
    import numpy as np

    columns: list[list[Any]] = [[] for _ in Frames._fields]
    for record in records:
        for event in record.all(FramesDone):
            num = len(event.end_s)
            if event.source != source or not num == len(event.stream) == len(event.begin_s):
                continue
            names = event.streams if source == "marked" else [_thread(record, name) for name in event.streams]
            models = [event.models[number] for number in event.model] if event.models else [""] * num
            rows: tuple[list[Any], ...] = (
                [names[number] for number in event.stream],
                models,
                event.begin_s,
                event.end_s,
                event.begin_cpu_s or [0.0] * num,
                event.end_cpu_s or [0.0] * num,
                [1 if samples is None else samples for samples in event.num_samples] or [1] * num,
            )
            for column, more in zip(columns, rows, strict=True):
                column.extend(more)
    order = np.argsort(np.asarray(columns[3], dtype=float), kind="stable")
    texts = [np.asarray(column, dtype=str)[order] for column in columns[:2]]
    return Frames(*texts, *(np.asarray(column, dtype=float)[order] for column in columns[2:]))


class Growth(NamedTuple):
    """By how much latency grows (s in a second), with its interval."""

    value: float
    low: float
    high: float


def growth(
    frames: Frames, begin_s: float, block_s: float = BLOCK_S, *, confidence: float = 0.95
) -> Growth | None:
    """Return how the median latency of a block's frames grows; None with too few blocks."""
    import numpy as np
    from scipy import stats

    blocks = ((frames.end_s - begin_s) / block_s).astype(int)
    latencies_s = frames.end_s - frames.begin_s
    numbers = sorted(set(blocks.tolist()))
    if len(numbers) < FEWEST_BLOCKS:
        return None
    medians = [float(np.median(latencies_s[blocks == number])) for number in numbers]
    line = stats.linregress(np.asarray(numbers) * block_s, medians)
    quantile = float(stats.t.ppf((1 + confidence) / 2, len(numbers) - 2))
    # The error of a line through equal medians is nan.
    slope, half = float(line.slope), quantile * float(np.nan_to_num(line.stderr))
    return Growth(slope, slope - half, slope + half)


def serving(streams: Seen, window: tuple[float, float]) -> Serving:
    """Return what the frames of the window took, as far as the calls of models show."""
    import numpy as np

    frames, calls = streams.frames.within(*window), streams.calls.within(*window)
    length_s = window[1] - window[0]
    num = float(frames.num_samples.sum()) if streams.source == "samples" else float(len(frames.end_s))
    grown = growth(frames, window[0]) if streams.source == "marks" else None
    found = Serving(
        source=streams.source,
        num_streams=len(set(frames.stream.tolist())),
        frames_per_s=num / length_s,
        growth_s=grown and grown.value,
        growth_low_s=grown and grown.low,
    )
    if not len(calls.end_s) or not num:
        return found
    under_way_s = float((calls.end_s - calls.begin_s).sum())
    covered_s = _covered_s(calls)
    inside_s = float((calls.end_cpu_s - calls.begin_cpu_s).sum())
    of_thread = [_of_thread(calls.where(calls.stream == name)) for name in set(calls.stream.tolist())]
    alone_s, together_s = _alone_and_together_s(calls)
    return msgspec.structs.replace(
        found,
        num_calls=len(calls.end_s),
        samples_per_call=float(np.median(calls.num_samples)),
        alone_s=alone_s,
        together_s=together_s,
        num_threads=len(of_thread),
        calls_at_once=under_way_s / covered_s if covered_s else 0.0,
        call_share=min(1.0, covered_s / length_s),
        call_s=under_way_s / num,
        call_cpu_s=inside_s / num,
        further_sample_s=_further_sample_s(calls),
        between_cpu_s=max(0.0, sum(cpu_s for cpu_s, _ in of_thread) - inside_s) / num,
        busiest_thread=max(share for _, share in of_thread),
    )


def _alone_and_together_s(calls: Frames) -> tuple[float | None, float | None]:
    """Return the mean time of calls that met no other call, and of those that did.

    Not the median: of calls that wait for the interpreter lock, few wait long.
    """
    import numpy as np

    order = np.argsort(calls.begin_s)
    begins, ends = calls.begin_s[order], calls.end_s[order]
    latest = np.maximum.accumulate(ends)
    meets = np.zeros(len(ends), dtype=bool)
    meets[1:] = begins[1:] < latest[:-1]
    meets[:-1] |= begins[1:] < ends[:-1]
    times_s = ends - begins
    found = [float(times_s[chosen].mean()) if chosen.any() else None for chosen in (~meets, meets)]
    return found[0], found[1]


def observed_serving(record: Record) -> Serving | None:
    """Return what the later half of the frames took that an observed process recorded; None with too few.

    The earlier half may have waited for compilers and caches.
    """
    events = record.all(FramesDone)
    threads = {name for event in events if event.source == "call" for name in event.streams}
    found = seen([record], len(threads))
    if found is None or len(found.frames.end_s) < FEWEST_FRAMES:
        return None
    # A recorded trace, or anything else after the plain window, makes frames late by itself.
    window = next(iter(record.all(Window)), None)
    ends, calls = found.frames.end_s, found.calls.end_s
    first_s, end_s = float(ends[0]), float(ends[-1])
    if window is not None:
        end_s = min(end_s, window.end_s)
    # Calls are recorded up to the first task, marked frames in the plain window too.
    last_s = min(end_s, float(calls[-1])) if len(calls) else end_s
    if last_s <= first_s:
        return None
    begin_s = first_s + (last_s - first_s) / 2
    span = begin_s, math.nextafter(last_s, math.inf)
    marked = found.frames.within(begin_s, math.nextafter(end_s, math.inf))
    grown = growth(marked, begin_s, OBSERVED_BLOCK_S) if found.source == "marks" else None
    models = [event.num_models for event in events if span[0] <= event.end_s[-1] <= last_s] or [0]
    served = serving(found, span)
    return msgspec.structs.replace(
        served,
        num_models=num_models([record]),
        models_per_call=(models[-1] - models[0]) / max(1, served.num_calls),
        growth_s=grown and grown.value,
        growth_low_s=grown and grown.low,
    )


def device_bytes(records: Sequence[Record]) -> int | None:
    """Return the peak of device memory of all processes together; None if none used a device."""
    last = [event for record in records if (event := record.last(FramesDone)) is not None]
    return sum(event.peak_device_bytes or 0 for event in last) or None


def num_models(records: Sequence[Record]) -> int:
    """Return how many models the processes have called so far."""
    return sum(event.num_models for record in records if (event := record.last(FramesDone)) is not None)


def _further_sample_s(calls: Frames) -> float | None:
    """Return the slope of the calls' time over their number of samples; None if all have as many."""
    import numpy as np

    sizes, times_s = calls.num_samples, calls.end_s - calls.begin_s
    medians = [(size, float(np.median(times_s[sizes == size]))) for size in sorted(set(sizes.tolist()))]
    if len(medians) < 2:
        return None
    slope = float(np.polyfit([size for size, _ in medians], [time_s for _, time_s in medians], 1)[0])
    return max(0.0, slope)


def busiest_process(records: Sequence[Record], window: tuple[float, float]) -> float | None:
    """Return the cores that the process used which used most; None if too little is known."""
    found = []
    for record in records:
        rows = [
            (event.end_s[-1], event.process_cpu_s)
            for event in record.all(FramesDone)
            if event.end_s and event.process_cpu_s is not None and window[0] <= event.end_s[-1] <= window[1]
        ]
        if len(rows) > 1 and rows[-1][0] > rows[0][0]:
            found.append((rows[-1][1] - rows[0][1]) / (rows[-1][0] - rows[0][0]))
    return max(found, default=None)


def weights_bytes(records: Sequence[Record]) -> int | None:
    """Return the bytes of the models' weights in all processes; None if no model was called."""
    known = [event.weights_bytes for record in records if (event := record.last(FramesDone)) is not None]
    return sum(known) or None


def _of_thread(calls: Frames) -> tuple[float, float]:
    """Return the CPU time of a thread from its first call to its last, and its share of that time."""
    cpu_s = float(calls.end_cpu_s[-1] - calls.begin_cpu_s[0])
    length_s = float(calls.end_s[-1] - calls.begin_s[0])
    return cpu_s, min(1.0, cpu_s / length_s) if length_s > 0 else 0.0


def _covered_s(calls: Frames) -> float:
    """Return the time with at least one call under way."""
    import numpy as np

    order = np.argsort(calls.begin_s)
    begins, ends = calls.begin_s[order], np.maximum.accumulate(calls.end_s[order])
    before = np.concatenate([begins[:1], ends[:-1]])
    return float(np.maximum(0.0, ends - np.maximum(begins, before)).sum())
