"""How many samples a batch holds, or None where its shape does not say."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


def in_batch(batch: Any, batch_size: int | None) -> int | None:
    """Samples in what a loader gave; `batch_size` is the loader's own, None when it has none."""
    if isinstance(batch, (list, tuple)) and batch:
        return _in_sequence(batch, batch_size)
    num = _leading(batch)
    if num is None and isinstance(batch, dict):
        for value in batch.values():
            num = _leading(value) or in_batch(value, batch_size)
            if num is not None:
                break
    if num is None:
        num = getattr(batch, "num_graphs", None)
    return num if isinstance(num, int) else None


def in_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """Samples in a module's inputs: the leading size of the first array with one."""
    for value in list(args) + list(kwargs.values()):
        num = _leading(value)
        if num is None and isinstance(value, (list, tuple, dict)):
            num = in_batch(value, None)
        if num is not None:
            return num
    return None


def _in_sequence(batch: Sequence[Any], batch_size: int | None) -> int | None:
    leading = [_leading(item) for item in batch]
    arrays = [num for num in leading if num is not None]
    if arrays and len(set(arrays)) == 1 and (batch_size is None or arrays[0] == batch_size):
        return arrays[0]
    # A collate that keeps samples apart gives one entry a sample.
    if batch_size is not None and len(batch) == batch_size:
        return batch_size
    if arrays:
        if len(set(arrays)) == 1 and arrays[0] <= (batch_size or arrays[0]):
            return arrays[0]
        # Arrays of several lengths: pictures of several sizes, one a sample, or parts of one batch.
        return len(batch) if batch_size is not None and len(batch) < batch_size else arrays[0]
    # Sequences side by side, as `zip(*samples)` gives them: images of all, targets of all.
    lengths = {len(item) for item in batch if isinstance(item, (list, tuple))}
    if len(lengths) == 1 and (batch_size is None or next(iter(lengths)) <= batch_size):
        return next(iter(lengths))
    return in_batch(batch[0], batch_size)


def _leading(value: Any) -> int | None:
    shape = getattr(value, "shape", None)
    if shape is None:
        return None
    try:
        return int(shape[0]) if len(shape) else None
    except (TypeError, ValueError):
        return None
