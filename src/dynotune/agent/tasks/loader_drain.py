"""Draws batches from an iterator of a loader, one after another, and times them; gives a batch once more."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from time import perf_counter

from ..core.annotations import Any, Callable
from ..core.tensors import tensors_in
from ..steps import samples

# For this long, and for so many batches; what was prefetched before tells nothing.
DRAIN_S, MOST_S = 3.0, 20.0
SKIP_S = 5.0
FEWEST_BATCHES = 8


def position(iterator: Any) -> tuple[bool, int | None, int, int]:
    """Of an iterator: it is at its begin, batches left (None: it does not tell), prefetched at most, fewest that tell.

    What workers make comes in bursts of as many batches as there are workers.
    """
    num_yielded = int(getattr(iterator, "_num_yielded", 0))
    workers = int(getattr(iterator, "_num_workers", 0))
    skip = workers * int(getattr(iterator, "_prefetch_factor", 0) or 2)
    try:
        left = None if _is_iterable(iterator) else len(iterator) - num_yielded
    except Exception:  # its own code does not know
        left = None
    return num_yielded == 0, left, skip, max(FEWEST_BATCHES, 2 * workers)


def _is_iterable(iterator: Any) -> bool:
    """Whether its length may be no more than a guess of the program's."""
    return type(iterator._index_sampler).__name__ == "_InfiniteConstantSampler" or iterator._dataset_kind == 1


def drain(
    original: Callable[[Any], Any], iterator: Any, *, fewest: int, skip: int, begun_s: float | None
) -> tuple[Any, dict[str, Any] | None]:
    """Draw until enough is known, or the epoch ends.

    Args:
        original: the iterator's `__next__`; what it raises is the program's.
        fewest: batches that tell; `skip`: those before that tell nothing.
        begun_s: when the iterator was begun, where nothing was drawn from it since; an epoch too short to leave
            anything out is then taken as a whole.

    Returns:
        The last of the largest batches, and fields of the event; None where the epoch ended too soon to tell.
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
        # An epoch's last batch may be a short one.
        if (sizes[-1] or 0) >= largest:
            batch, largest = last, sizes[-1] or 0
        if num_skipped < skip and now - start_s < SKIP_S:
            num_skipped, begin_s = num_skipped + 1, now
            continue
        num += 1
        if (now - begin_s >= DRAIN_S and num >= fewest) or now - start_s >= MOST_S:
            return batch, _fields(iterator, sizes, num_skipped, now - begin_s, False)
    # The end of the epoch; the draw that found no more is not counted.
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


_MOST_DEPTH = 6
_NUM_VALUES = 256


def alias(torch: Any, value: Any, depth: int = 0) -> Any:
    """`value` such that taking it apart, or changing a tensor's shape in place, leaves the original as it is.

    Tensors are shared: a program that changes that in place changes it for every step.
    """
    kind = type(value)
    if kind is torch.Tensor:
        return value if value.requires_grad else value.detach()
    if depth >= _MOST_DEPTH or isinstance(value, torch.Tensor):
        return value
    if kind is list or kind is tuple:
        return kind(alias(torch, item, depth + 1) for item in value)
    if kind is dict:
        return {key: alias(torch, item, depth + 1) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return kind._make(alias(torch, item, depth + 1) for item in value)
    if isinstance(value, (list, Mapping)) or hasattr(value, "__dict__"):
        return _shallow(value)
    return value


def _shallow(value: Any) -> Any:
    try:
        return copy.copy(value)
    except Exception:  # its own code may refuse
        return value


def values(torch: Any, batch: Any) -> str:
    """Some of the values in each tensor of the batch: what is changed in place differs.

    A tensor's own count of changes would do, but that reshaping in place counts, too, and changes no value.
    """
    found = []
    with torch._C.DisableTorchFunction(), torch.no_grad():
        for tensor in tensors_in(torch, batch):
            try:
                flat = tensor.detach().reshape(-1)
                found.append(flat[:: max(1, flat.numel() // _NUM_VALUES)].tolist())
            except Exception:  # of a layout or a class that has no such thing
                pass
    # In words: what is not a number equals nothing, itself neither.
    return repr(found)
