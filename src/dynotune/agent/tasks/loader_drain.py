"""Draw batches from a loader's iterator one after another, to time the loader alone."""

from __future__ import annotations

from time import perf_counter

from ..steps import samples

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# Drain for this long, and for this many batches; batches prefetched before do not count.
DRAIN_S, MOST_S = 3.0, 20.0
SKIP_S = 5.0
FEWEST_BATCHES = 8


def position(iterator: Any) -> tuple[bool, int | None, int, int]:
    """Return whether an iterator is at its begin, and three numbers of batches.

    The numbers are those of the batches left (None if unknown), prefetched at most, and needed.
    Workers deliver batches in bursts, one batch per worker.
    """
    num_yielded = int(getattr(iterator, "_num_yielded", 0))
    workers = int(getattr(iterator, "_num_workers", 0))
    skip = workers * int(getattr(iterator, "_prefetch_factor", 0) or 2)
    try:
        left = None if _is_iterable(iterator) else len(iterator) - num_yielded
    except Exception:  # its own code does not know the length
        left = None
    return num_yielded == 0, left, skip, max(FEWEST_BATCHES, 2 * workers)


def _is_iterable(iterator: Any) -> bool:
    """Tell whether the iterator's length may be only the program's estimate."""
    return type(iterator._index_sampler).__name__ == "_InfiniteConstantSampler" or iterator._dataset_kind == 1


def drain(
    original: Callable[[Any], Any], iterator: Any, *, fewest: int, skip: int, begun_s: float | None
) -> tuple[Any, dict[str, Any] | None]:
    """Draw batches until the loader's rate is known, or the epoch ends.

    Args:
        original: the iterator's `__next__`; exceptions that it raises are the program's.
        fewest: number of batches needed.
        skip: number of batches before the needed batches that do not count.
        begun_s: time of the iterator's begin, if no batch was drawn since. An epoch too short to leave out
            batches then counts as a whole.

    Returns:
        The last of the largest batches, and fields of the event; None if the epoch ended too soon.
    """
    start_s = begin_s = perf_counter()
    num = num_skipped = largest = 0
    sizes: list[int | None] = []
    batch: Any = None
    while True:
        try:
            last = original(iterator)
        except StopIteration:
            if not num and not num_skipped:
                raise
            break
        now = perf_counter()
        sizes.append(samples.in_batch(last, iterator._dynotune[1]))
        # An epoch's last batch may be a smaller one.
        if (sizes[-1] or 0) >= largest:
            batch, largest = last, sizes[-1] or 0
        if num_skipped < skip and now - start_s < SKIP_S:
            num_skipped, begin_s = num_skipped + 1, now
            continue
        num += 1
        if (now - begin_s >= DRAIN_S and num >= fewest) or now - start_s >= MOST_S:
            return batch, _fields(iterator, sizes, num_skipped, now - begin_s, False)
    # The end of the epoch; the draw that found no batch is not counted.
    if num >= fewest:
        return batch, _fields(iterator, sizes, num_skipped, now - begin_s, False)
    if begun_s is None:
        return batch, None
    return batch, _fields(iterator, sizes, 0, now - begun_s, True)


def _fields(
    iterator: Any, sizes: list[int | None], num_skipped: int, duration_s: float, is_whole: bool
) -> dict[str, Any]:
    timed = sizes[num_skipped:]
    counted = [size for size in timed if size is not None]
    return {
        "num_batches": len(timed),
        "num_samples": sum(counted) if len(counted) == len(timed) else None,
        "seconds": duration_s,
        "num_skipped": num_skipped,
        "num_workers": int(getattr(iterator, "_num_workers", 0)),
        "whole_epoch": is_whole,
    }
