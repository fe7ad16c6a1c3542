"""What rules about the start share: how much a start that was timed loses, and in which words."""

from __future__ import annotations

from dynotune.doctor import policy
from dynotune.doctor.machine import is_on, known, known_number, whole_number
from dynotune.doctor.observation_view import Seen
from dynotune.schema.diagnosis import Severity
from dynotune.text import words


def severity_of_start(seen: Seen) -> Severity:
    """By what a warm cache saves of a start that was timed."""
    return _severity(known_number(seen, "start.saved_s"))


def severity_of_driver(seen: Seen) -> Severity:
    """As `severity_of_start`, by no more than the driver's compiling can have taken of it."""
    saved_s, left = known_number(seen, "start.saved_s"), left_by_driver(seen)
    if saved_s is not None and left:
        saved_s = min(saved_s, left / policy.LEAST_JIT_BYTES_PER_S)
    return _severity(saved_s)


def _severity(saved_s: float | None) -> Severity:
    if saved_s is None:
        return "medium"
    return "high" if saved_s >= policy.MUCH_OF_START_S else "medium" if saved_s >= policy.SOME_OF_START_S else "low"


def left_by_driver(seen: Seen) -> float:
    """Bytes that a cold start leaves in the driver's cache; 0 where none was timed, or they are cuDNN's own."""
    left = known_number(seen, "start.cuda_added_bytes") or 0.0
    return 0.0 if known(seen, "torch.runs_natively") is True and left <= policy.FEW_JIT_BYTES else left


def compiles_unseen(seen: Seen) -> bool:
    """There are libraries that the driver has to compile, and a cache that keeps too little to show it."""
    limit = whole_number(seen.variable("CUDA_CACHE_MAXSIZE"))
    small = limit is not None and limit < policy.SURELY_KEPT_BYTES and not known_number(seen, "start.cuda_kept_bytes")
    return bool(known_number(seen, "code.num_compiled")) and (small or is_on(seen.variable("CUDA_CACHE_DISABLE")))


def without_machine_code(seen: Seen) -> list[str]:
    """For evidence: the libraries of the command that have PTX alone for this GPU, or for parts of them."""
    num, size = known_number(seen, "code.num_compiled"), known_number(seen, "code.ptx_bytes")
    if not num or size is None:
        return []
    named = known(seen, "code.compiled")
    which = f" ({', '.join(map(str, named))}{', …' if num > len(named) else ''})" if isinstance(named, list) else ""
    return [f"{num:.0f} of its libraries hold {words.num_bytes(size)} of PTX without machine code for this GPU{which}"]


def what_it_saves(seen: Seen) -> list[str]:
    """For evidence, where starts were timed."""
    cold_s, warm_s = known_number(seen, "start.cold_s"), known_number(seen, "start.warm_s")
    if cold_s is None or warm_s is None:
        return []
    return [f"{words.duration(cold_s)} to the first step with the caches cold, {words.duration(warm_s)} with them warm"]
