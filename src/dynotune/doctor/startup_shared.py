"""Shared by rules about the start: the loss of a timed start, and its evidence."""

from __future__ import annotations

from dynotune.doctor import policy
from dynotune.doctor.machine import is_on, whole_number
from dynotune.doctor.observation_view import ObservationView
from dynotune.schema.diagnosis import Severity
from dynotune.text import words


def severity_of_start(view: ObservationView) -> Severity:
    """Return the severity by what a warm cache saves of a timed start."""
    return _severity(view.number_or_none("start.saved_s"))


def severity_of_driver(view: ObservationView) -> Severity:
    """Return `severity_of_start`, with the saving limited to what the driver's compilation can have taken."""
    saved_s, left = view.number_or_none("start.saved_s"), left_by_driver(view)
    if saved_s is not None and left:
        saved_s = min(saved_s, left / policy.LEAST_JIT_BYTES_PER_S)
    return _severity(saved_s)


def _severity(saved_s: float | None) -> Severity:
    if saved_s is None:
        return "medium"
    return "high" if saved_s >= policy.MUCH_OF_START_S else "medium" if saved_s >= policy.SOME_OF_START_S else "low"


def left_by_driver(view: ObservationView) -> float:
    """Return the bytes that a cold start leaves in the driver's cache; 0 if none was timed, or they are cuDNN's own."""
    left = view.number_or_none("start.cuda_added_bytes") or 0.0
    return 0.0 if view.fact_or_none("torch.runs_natively") is True and left <= policy.FEW_JIT_BYTES else left


def compiles_unseen(view: ObservationView) -> bool:
    """Tell whether the driver must compile libraries, and its cache keeps too little to show it."""
    limit = whole_number(view.variable("CUDA_CACHE_MAXSIZE"))
    small = limit is not None and limit < policy.SURELY_KEPT_BYTES and not view.number_or_none("start.cuda_kept_bytes")
    return bool(view.number_or_none("code.num_compiled")) and (small or is_on(view.variable("CUDA_CACHE_DISABLE")))


def without_machine_code(view: ObservationView) -> list[str]:
    """Return evidence of libraries that have only PTX for this GPU, as a whole or in part."""
    num, size = view.number_or_none("code.num_compiled"), view.number_or_none("code.ptx_bytes")
    if not num or size is None:
        return []
    named = view.fact_or_none("code.compiled")
    which = f" ({', '.join(map(str, named))}{', …' if num > len(named) else ''})" if isinstance(named, list) else ""
    return [f"{num:.0f} of its libraries hold {words.num_bytes(size)} of PTX without machine code for this GPU{which}"]


def what_it_saves(view: ObservationView) -> list[str]:
    """Return evidence of the times of cold and warm starts, if starts were timed."""
    cold_s, warm_s = view.number_or_none("start.cold_s"), view.number_or_none("start.warm_s")
    if cold_s is None or warm_s is None:
        return []
    return [f"{words.duration(cold_s)} to the first step with the caches cold, {words.duration(warm_s)} with them warm"]
