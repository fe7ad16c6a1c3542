"""How much of a batch is padding: from a mask, or from a constant tail of whole numbers or frames.

Only tensors in host memory are looked at, and of a loader's batches the first, second, fourth and so on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..core.annotations import Any
from ..core.tensors import tensors_in

_MOST_LOOKS, _MOST_VALUES, _FEWEST_LONG = 8, 1 << 20, 4
_OTHERS = re.compile("label|type|segment|position")


class Padding:
    """Lengths of the rows of some batches."""

    def __init__(self) -> None:
        self._num_drawn, self._by = 0, ""
        self._batches: list[tuple[list[int], int]] = []

    @property
    def done(self) -> bool:
        """No further batch will be looked at: there were enough, or the first ones have no rows of different length."""
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
        """Fields of `schema.observation.Padding`; None where no batch has rows of known length."""
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
    """Return what tells, the rows' lengths, and how long each row of the batch is."""
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
    """The length of each row up to a tail, or from a head, of a value that occurs nowhere else; None without one."""
    pad: Any = None
    if value.dim() == 3 and value.is_floating_point():
        value, pad = (value != 0).any(-1), False
    elif value.dim() == 3 or value.is_floating_point():
        return None
    elif "mask" in name:
        pad = "padding" in name  # as torch has it; elsewhere 1 is what is kept
    for rows in (value, value.flip(1)):
        same = rows == (rows[:, -1].mode().values if pad is None else pad)
        tails = same.flip(1).long().cumprod(1).sum(1)
        if int(same.sum()) != int(tails.sum()) or int(tails.max()) == rows.shape[1]:
            continue
        # A value that rows of one length end with may be one of theirs.
        if int(tails.max()) >= 2 and (pad is not None or int(tails.min()) <= 1 or len(tails.unique()) > 2):
            return (rows.shape[1] - tails).tolist()
    return [value.shape[1]] * len(value) if "mask" in name and not bool((value == pad).any()) else None
