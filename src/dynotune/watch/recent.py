"""Values of the last minute, one a second, as a sparkline shows them."""

from collections.abc import Callable, Sequence

from dynotune.watch.store import Bin, Store

LENGTH_S = 60
MEANS = ("gpu.kernel_running_percent", "gpu.memory_used_bytes", "cores", "others", "rss")

Recent = list[float | None]


def recent(store: Store, now: float) -> dict[str, Recent]:
    """Return the values of the last minute, one a second and the newest last; None where there was none.

    Args:
        now: the end of the minute, as the store's times.

    Returns:
        By name: `steps_per_s` and `wait_share` of the first rank, `samples_per_s` of all ranks together, and
        the means of values of the machine over all GPUs that have them.
    """
    end_s = int(now)
    found: dict[str, Recent] = {}
    ranks = store.whose("step")
    if ranks:
        steps = _by_second(store, "step", ranks[0], end_s)
        waits = _by_second(store, "wait", ranks[0], end_s)
        found["steps_per_s"] = [None if not one or not one.total else one.num / one.total for one in steps]
        found["wait_share"] = [
            wait.total / step.total if step and wait and step.total else None
            for step, wait in zip(steps, waits, strict=True)
        ]
    if store.whose("samples"):
        found["samples_per_s"] = _together(
            [_samples_per_s(store, rank, end_s) for rank in store.whose("samples")], sum
        )
    for name in MEANS:
        means = [
            [None if one is None else one.mean for one in _by_second(store, name, whose, end_s)]
            for whose in store.whose(name)
        ]
        if means:
            found[name] = _together(means, lambda values: sum(values) / len(values))
    return found


def _by_second(store: Store, name: str, whose: str, end_s: int) -> list[Bin | None]:
    """Return the bin of each of the last seconds; None for a second without values."""
    bins = {int(one.begin_s): one for one in store.of(name, whose).bins(end_s - LENGTH_S)}
    return [bins.get(second) for second in range(end_s - LENGTH_S, end_s)]


def _samples_per_s(store: Store, rank: str, end_s: int) -> Recent:
    steps = _by_second(store, "step", rank, end_s)
    samples = _by_second(store, "samples", rank, end_s)
    return [
        sample.total / step.total if step and sample and step.total else None
        for step, sample in zip(steps, samples, strict=True)
    ]


def _together(series: Sequence[Recent], joined: Callable[[Sequence[float]], float]) -> Recent:
    """Join series of equal length second by second, over those that have a value."""
    known = ([value for value in second if value is not None] for second in zip(*series, strict=True))
    return [joined(values) if values else None for values in known]
