"""Parse torch's message about a failed allocation: the size requested, the holders of memory, and fragmented
memory."""

import re
from collections.abc import Iterable, Mapping

from dynotune.text import words

_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SIZE = r"(\d+(?:\.\d+)?) (bytes|KiB|MiB|GiB)"
_ASKED = re.compile(rf"out of memory\. Tried to allocate {_SIZE}")
USES = {"optimizer": "optimizer states"}
_FIELDS = {
    "total": re.compile(rf"total capacity of {_SIZE}"),
    "free": re.compile(rf"of which {_SIZE} is free"),
    "process": re.compile(rf"this process has {_SIZE} memory in use"),
    "others": re.compile(rf"Process \d+ has {_SIZE} memory in use"),
    "allocated": re.compile(rf"{_SIZE} is allocated by PyTorch"),
    "pools": re.compile(rf"with {_SIZE} allocated in private pools"),
    "split": re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated"),
    "allowed": re.compile(rf"{_SIZE} allowed"),
}


def why_memory_ran_out(
    lines: Iterable[str], *, batch: int | None = None, held: Mapping[str, int] | None = None
) -> str:
    """Describe the last out-of-memory error in a program's output in sentences; "" without such an error.

    Args:
        batch: samples in the failed step; None if unknown.
        held: bytes of live tensors by use, as far as known.
    """
    line = next((line for line in reversed(list(lines)) if _ASKED.search(line)), "")
    if not line:
        return ""
    asked = _bytes_in(line, _ASKED)
    found = {name: _bytes_in(line, pattern) for name, pattern in _FIELDS.items() if pattern.search(line)}
    size = words.num_bytes
    told = [f"The device's memory is full: {size(asked)} more was asked for"]
    if {"total", "free"} <= found.keys():
        told[0] += f", and of {size(found['total'])} only {size(found['free'])} was free"
    if {"process", "allocated", "split"} <= found.keys():
        found["outside"] = max(0, found["process"] - found["allocated"] - found["split"])
    holders = {
        "allocated": "in live tensors",
        "pools": "of these in CUDA graphs' pools",
        "split": "reserved but free only in pieces or pools that this could not use",
        "outside": "by the CUDA context and libraries",
        # If torch does not know its own process id, one of these processes is the program itself.
        "others": "by other processes" if "process" in found else "by processes on the device",
    }
    parts = [f"{size(found[name])} {what}" for name, what in holders.items() if found.get(name)]
    told += [f"Held: {', '.join(parts)}"] if parts else []
    if by_use := [
        f"{size(num_bytes)} {USES.get(use, use)}" for use, num_bytes in (held or {}).items() if num_bytes
    ]:
        rest = found.get("allocated", 0) - sum((held or {}).values())
        by_use += [f"{size(rest)} activations and all else"] if rest > 0 else []
        told.append(f"Live tensors: {', '.join(by_use)}")
    if "allowed" in found:
        told.append(f"The program allows itself {size(found['allowed'])}")
    if found.get("split", -1) >= asked:
        told.append("As much memory is free, but in pieces: alloc.expandable_segments=true may be enough")
    if (most := _batch_at_most(asked, found, batch)) is not None:
        told.append(f"A batch that fits has at most {most} samples")
    return ". ".join(told) + "."


def _batch_at_most(asked: int, found: Mapping[str, int], batch: int | None) -> int | None:
    """Return an upper bound on the batch size: not all memory that the process had and requested was for the
    batch."""
    if batch is None or not {"process", "total"} <= found.keys():
        return None
    limit = min(found["total"] - found.get("others", 0), found.get("allowed", 1 << 62))
    held = found["process"] - found.get("split", 0)
    constant = max(0, held - found.get("allocated", 0))
    if held + asked <= limit or constant >= limit:
        return None  # fragmentation is the cause, not the amount
    return min(batch - 1, int(batch * (limit - constant) / (held + asked - constant)))


def _bytes_in(line: str, pattern: re.Pattern[str]) -> int:
    """Sum the bytes of all matches, because the message may list several other processes."""
    return sum(int(float(number) * _UNITS[unit]) for number, unit in pattern.findall(line))
