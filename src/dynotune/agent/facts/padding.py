"""Measure the share of padding in some of a loader's batches."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..core.tensors import tensors_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MOST_LOOKS = 8
_MOST_VALUES = 1 << 20
_FEWEST_LONG = 4
_OTHERS = re.compile("label|type|segment|position")


class Padding:
    """Share of padding in some batches, from a mask tensor, or from a constant tail of integers or frames.

    Only tensors in host memory are inspected, and only a loader's first, second, fourth, eighth, … batch.
    """

    def __init__(self) -> None:
        self._num_drawn, self._by = 0, ""
        self._batches: list[tuple[list[int], int]] = []

    @property
    def done(self) -> bool:
        """Tell whether no further batch is needed.

        That is so if enough batches were inspected, or if the first rows all have equal length.
        """
        return len(self._batches) >= _MOST_LOOKS or (self._num_drawn >= 2 and not self._batches)

    def look(self, torch: Any, batch: Any) -> None:
        self._num_drawn += 1
        if self.done or self._num_drawn & (self._num_drawn - 1):
            return
        with torch.no_grad(), torch._C.DisableTorchFunction():
            found = _lengths(torch, batch)
        if found is not None:
            self._by, lengths, width = found
            self._batches.append((lengths, width))

    def facts(self) -> dict[str, Any] | None:
        """Return the fields of `schema.loader.Padding`; None if no batch has rows of known length."""
        if not self._batches:
            return None
        lengths = sorted(length for batch, _ in self._batches for length in batch)
        size = max(1, len(self._batches[0][0]))
        groups = [lengths[at : at + size] for at in range(0, len(lengths), size)]
        total, kept = sum(len(batch) * width for batch, width in self._batches), sum(lengths)
        return {
            "by": self._by,
            "num_batches": len(self._batches),
            "share": 1 - kept / total,
            "longest_share": 1 - kept / max(1, sum(len(batch) * max(batch) for batch, _ in self._batches)),
            "sorted_share": 1 - kept / max(1, sum(len(group) * group[-1] for group in groups)),
        }


def _lengths(torch: Any, batch: Any) -> tuple[str, list[int], int] | None:
    """Return the source of the lengths, the lengths of the rows, and the padded length."""
    if isinstance(batch, Mapping):
        named = [(str(name), value) for name, value in batch.items() if not _OTHERS.search(str(name))]
        named.sort(key=lambda pair: "mask" not in pair[0])
    else:
        named = [("", value) for value in tensors_in(torch, batch)]
    for name, value in named:
        if not isinstance(value, torch.Tensor) or value.device.type != "cpu" or value.is_nested:
            continue
        if value.layout != torch.strided or value.dim() not in (2, 3) or value.numel() > _MOST_VALUES:
            continue
        kept = _kept(torch, value, name) if value.shape[0] > 1 and value.shape[1] >= _FEWEST_LONG else None
        if kept is not None:
            by = name if "mask" in name else "frames of zeros" if value.dim() == 3 else "a constant tail"
            return by, [int(length) for length in kept], int(value.shape[1])
    return None


def _kept(torch: Any, value: Any, name: str) -> Any:
    """Return each row's length without a constant tail or head whose value occurs nowhere else; else None."""
    pad: Any = None
    if value.dim() == 3 and value.is_floating_point():
        value, pad = (value != 0).any(-1), False
    elif value.dim() == 3 or value.is_floating_point():
        return None
    elif "mask" in name:
        pad = "padding" in name  # torch's convention; elsewhere 1 marks the kept part
    for rows in (value, value.flip(1)):
        same = rows == (rows[:, -1].mode().values if pad is None else pad)
        tails = same.flip(1).long().cumprod(1).sum(1)
        if int(same.sum()) != int(tails.sum()) or int(tails.max()) == rows.shape[1]:
            continue
        # If all rows have equal length, the value that ends them may be data.
        if int(tails.max()) >= 2 and (pad is not None or int(tails.min()) <= 1 or len(tails.unique()) > 2):
            return (rows.shape[1] - tails).tolist()
    return [value.shape[1]] * len(value) if "mask" in name and not bool((value == pad).any()) else None
