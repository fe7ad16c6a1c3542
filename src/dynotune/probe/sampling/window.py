"""Look at samples through a time window: which lie inside it, and how much counters grow within it."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence

from dynotune.probe.sources.samples import ByName, Sample
from dynotune.schema.facts import Missing, Unknown, needed, or_unknown

Counter = Callable[[Sample], float]
"""Read a counter of a sample. Raises Missing if the sample lacks it."""

FELL = Unknown("the counter fell")


@or_unknown()
def growth(samples: Sequence[Sample], counter: Counter, begin_s: float, end_s: float) -> float | Unknown:
    """Return a counter's growth from `begin_s` to `end_s`, both within the samples, by linear interpolation.

    The growth is Unknown if a needed sample lacks the counter, or if the counter fell.
    """
    begin, end = _at(samples, counter, begin_s), _at(samples, counter, end_s)
    return end - begin if end >= begin else FELL


def _at(samples: Sequence[Sample], counter: Counter, time_s: float) -> float:
    after_at = min(bisect_right(samples, time_s, key=lambda sample: sample.time_s), len(samples) - 1)
    left, right = samples[max(after_at - 1, 0)], samples[after_at]
    before, after = counter(left), counter(right)
    if after < before:
        raise Missing(FELL)
    span_s = right.time_s - left.time_s
    share = (time_s - left.time_s) / span_s if span_s > 0 else 1.0
    return float(before + share * (after - before))


def counted(part: str, field: str, place: int = 0) -> Counter:
    """Return a reader for `growth` of one counter in `part` of the samples; `place` selects a GPU in the
    samples."""

    def counter(sample: Sample) -> float:
        counters = needed(getattr(sample, part))
        if isinstance(counters, list):
            absent = Unknown("this GPU was not sampled for the whole window")
            counters = counters[place] if place < len(counters) else needed(absent)
        if isinstance(counters, ByName):
            return needed(counters.values.get(field, Unknown(f"this kernel does not count {field}")))
        value: float = needed(Unknown("it was not counted") if counters is None else getattr(counters, field))
        return value

    return counter


@or_unknown()
def total(values: Iterable[float | Unknown]) -> float:
    return sum(map(needed, values))


def covers(samples: Sequence[Sample], begin_s: float, end_s: float) -> bool:
    """Tell whether samples reach from before to after the window. Raises ValueError: the window's end comes
    first."""
    if not begin_s < end_s:
        raise ValueError(f"a window from {begin_s} to {end_s} s")
    return bool(samples) and samples[0].time_s <= begin_s and end_s <= samples[-1].time_s


def inside(samples: Sequence[Sample], begin_s: float, end_s: float) -> list[Sample]:
    """Return the samples inside a window that the samples cover; for a window between two samples, return
    those two."""
    found = [sample for sample in samples if begin_s <= sample.time_s <= end_s]
    after = next(at for at, sample in enumerate(samples) if sample.time_s >= end_s)
    return found or list(samples[max(0, after - 1) : after + 1])


class Window:
    """A time window: all samples, the window's begin and end, and the samples inside the window."""

    def __init__(self, samples: Sequence[Sample], begin_s: float, end_s: float) -> None:
        self.samples, self.begin_s, self.end_s = samples, begin_s, end_s
        self.length_s = end_s - begin_s
        self.inside = inside(samples, begin_s, end_s)

    def growth(self, part: str, field: str, place: int = 0) -> float:
        """Return the growth of one counter in a part of the samples. Raises Missing: some sample lacks the
        counter."""
        return self._growth(counted(part, field, place))

    def own_cpu_s(self) -> float:
        return self._growth(lambda sample: sample.own_cpu_s)

    def _growth(self, counter: Counter) -> float:
        return needed(growth(self.samples, counter, self.begin_s, self.end_s))

    def other_cpu_s(self) -> float:
        """Return CPU time (s) of our cores that neither the tree nor dynotune used; counter errors can make
        it < 0.

        Kernel threads count as others, because their work cannot be attributed.
        """
        return self.growth("cores", "busy_s") - self.growth("tree", "cpu_s") - self.own_cpu_s()
