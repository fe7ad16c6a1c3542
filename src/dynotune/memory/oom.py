"""An allocation that failed, from torch's own message: what was asked, who held what, and what was free in pieces."""

from __future__ import annotations

import re
from collections.abc import Iterable

from dynotune.schema.memory import OutOfMemory
from dynotune.text import words

_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SIZE = r"(\d+(?:\.\d+)?) (bytes|KiB|MiB|GiB)"
_ASKED = re.compile(rf"out of memory\. Tried to allocate {_SIZE}")
_FIELDS = {
    "total_bytes": re.compile(rf"total capacity of {_SIZE}"),
    "free_bytes": re.compile(rf"of which {_SIZE} is free"),
    "process_bytes": re.compile(rf"this process has {_SIZE} memory in use"),
    "allocated_bytes": re.compile(rf"{_SIZE} is allocated by PyTorch"),
    "pools_bytes": re.compile(rf"with {_SIZE} allocated in private pools"),
    "split_bytes": re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated"),
    "allowed_bytes": re.compile(rf"{_SIZE} allowed"),
}
_OTHERS = re.compile(rf"Process \d+ has {_SIZE} memory in use")
_DEVICE = re.compile(r"GPU (\d+) has a total capacity")


def found_in(lines: Iterable[str], *, batch: int | None = None) -> OutOfMemory | None:
    """The last failure that these lines of a program's output tell of; None where they tell of none.

    Args:
        batch: samples of the step that failed; None where it is not known.
    """
    line = next((line for line in reversed(list(lines)) if _ASKED.search(line)), None)
    if line is None:
        return None
    asked = _ASKED.search(line)
    assert asked is not None
    sizes = {name: _bytes(match) for name, pattern in _FIELDS.items() if (match := pattern.search(line))}
    others = [_bytes(match) for match in _OTHERS.finditer(line)]
    device = _DEVICE.search(line)
    return OutOfMemory(
        asked_bytes=_bytes(asked),
        device=int(device[1]) if device else None,
        others_bytes=sum(others) if others else 0 if "process_bytes" in sizes else None,
        batch_at_most=_batch_at_most(_bytes(asked), sizes, sum(others), batch),
        **sizes,
    )


def explained(failure: OutOfMemory) -> str:
    """The failure in sentences: what was asked, what held the memory, what was free in pieces, what to do."""
    size = words.num_bytes
    told = [f"The device's memory is full: {size(failure.asked_bytes)} more was asked for"]
    if failure.total_bytes is not None and failure.free_bytes is not None:
        told[0] += f", and of {size(failure.total_bytes)} only {size(failure.free_bytes)} was free"
    held = [
        (failure.allocated_bytes, "in live tensors"),
        (failure.pools_bytes, "of these in CUDA graphs' pools"),
        (failure.split_bytes, "reserved but free only in pieces or pools that this could not use"),
        (_outside(failure), "by the CUDA context and libraries"),
        (failure.others_bytes, "by other processes"),
    ]
    parts = [f"{size(num)} {what}" for num, what in held if num]
    told += [f"Held: {', '.join(parts)}"] if parts else []
    if failure.allowed_bytes is not None:
        told.append(f"The program allows itself {size(failure.allowed_bytes)}")
    if failure.split_bytes is not None and failure.split_bytes >= failure.asked_bytes:
        told.append("As much lies free in pieces: alloc.expandable_segments=true may be enough")
    if failure.batch_at_most is not None:
        told.append(f"A batch that fits has at most {failure.batch_at_most} samples")
    return ". ".join(told) + "."


def _outside(failure: OutOfMemory) -> int | None:
    """What the process holds besides torch's allocator."""
    if failure.process_bytes is None or failure.allocated_bytes is None or failure.split_bytes is None:
        return None
    return max(0, failure.process_bytes - failure.allocated_bytes - failure.split_bytes)


def _batch_at_most(asked: int, sizes: dict[str, int], others: int, batch: int | None) -> int | None:
    """An upper bound: the process needed at least what it held and asked for, and part of that is no batch's."""
    if batch is None or "process_bytes" not in sizes or "total_bytes" not in sizes:
        return None
    limit = min(sizes["total_bytes"] - others, sizes.get("allowed_bytes", 1 << 62))
    unused = sizes.get("split_bytes", 0)
    needed = sizes["process_bytes"] - unused + asked
    constant = max(0, sizes["process_bytes"] - unused - sizes.get("allocated_bytes", 0))
    if needed <= limit or constant >= limit:
        return None  # the pieces, not the amount, are why
    return min(batch - 1, int(batch * (limit - constant) / (needed - constant)))


def _bytes(match: re.Match[str]) -> int:
    return int(float(match[1]) * _UNITS[match[2]])
