"""Count the samples in a batch; None if the batch's shape does not show the number of samples."""

from __future__ import annotations

from collections.abc import Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


def in_batch(batch: Any, batch_size: int | None) -> int | None:
    """Count the samples in a loader's batch; `batch_size` is the loader's own batch size, or None."""
    try:
        return _in_batch(batch, batch_size)
    except Exception:  # the batch's own class raises when inspected
        return None


def _in_batch(batch: Any, batch_size: int | None) -> int | None:
    if isinstance(batch, (list, tuple)) and batch:
        return _in_sequence(batch, batch_size)
    num = _leading(batch)
    if num is None and isinstance(batch, Mapping):
        for value in batch.values():
            num = _leading(value) or _in_batch(value, batch_size)
            if num is not None:
                break
    if num is None:
        num = getattr(batch, "num_graphs", None)
    return num if isinstance(num, int) else None


def are_fields(batch: Any, num_samples: int | None) -> bool:
    """Tell whether `batch` can only be a list of fields, whose first field is a tensor of all samples."""
    try:
        usual = type(batch) in (list, tuple) and len(batch) != num_samples
        return usual and bool(batch[0].size(0) == num_samples)
    except Exception:  # not a tensor, and its own code may raise anything
        return False


def in_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """Count the samples in a module's inputs: the leading dimension of the first array that has dimensions,
    or the pictures in a list, as torchvision's detectors take them."""
    try:
        size = args[0].size(0)  # the usual case, first
        if isinstance(size, int):  # in a trace the size is a tensor, and the question would be traced too
            return size
    except Exception:  # whatever it is
        pass
    for value in list(args) + list(kwargs.values()):
        num = _leading(value)
        if num is None and isinstance(value, (list, tuple, Mapping)):
            as_pictures = isinstance(value, list) and _are_all_pictures(value)
            num = len(value) if as_pictures else in_batch(value, None)
        if num is not None:
            return num
    return None


def _in_sequence(batch: Sequence[Any], batch_size: int | None) -> int | None:
    leading = [_leading(item) for item in batch]
    arrays = [num for num in leading if num is not None]
    alike = len(set(arrays)) == 1
    if alike and (
        batch_size is None or arrays[0] == batch_size or (arrays[0] < batch_size and _are_fields(batch))
    ):
        return arrays[0]
    # A collate function that keeps samples apart gives one entry per sample.
    if batch_size is not None and len(batch) == batch_size:
        return batch_size
    if arrays:
        if alike and arrays[0] <= (batch_size or arrays[0]) and not _are_pictures(batch):
            return arrays[0]
        # Arrays of several lengths: images of several sizes, one per sample, or parts of one batch.
        return len(batch) if batch_size is not None and len(batch) < batch_size else arrays[0]
    # Sequences side by side, as `zip(*samples)` gives them: images of all samples, targets of all samples.
    lengths = {len(item) for item in batch if isinstance(item, (list, tuple))}
    if len(lengths) == 1 and (batch_size is None or next(iter(lengths)) <= batch_size):
        return next(iter(lengths))
    return _in_batch(batch[0], batch_size)


def _are_fields(batch: Sequence[Any]) -> bool:
    """Tell whether the arrays are fields of a batch: inputs and labels differ in rank, separate samples do
    not."""
    return len({len(getattr(item, "shape", ())) for item in batch}) > 1


def _are_pictures(batch: Sequence[Any]) -> bool:
    """Tell whether the arrays are images of several sizes, with channels first."""
    return len({tuple(getattr(item, "shape", ())) for item in batch}) > 1 and _are_all_pictures(batch)


def _are_all_pictures(values: Any) -> bool:
    """Tell whether the entries of a list are images with channels first."""
    try:
        shapes = {tuple(item.shape) for item in values}
        return bool(shapes) and all(
            len(shape) == 3 and shape[0] in (1, 3, 4) and min(shape[1:]) > 4 for shape in shapes
        )
    except Exception:  # not arrays, and their own code may raise anything
        return False


def _leading(value: Any) -> int | None:
    try:
        shape = getattr(value, "shape", None)
        return shape[0] if shape is not None and len(shape) and isinstance(shape[0], int) else None
    except Exception:
        return None
