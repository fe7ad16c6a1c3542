"""Tell whether memory is short where a program works: on its devices, or on the host of a program without a
device."""

from dynotune.doctor import policy
from dynotune.doctor.observation_view import ObservationView
from dynotune.schema.facts import Unknown
from dynotune.schema.memory import Moment, RankMemory


def is_short(view: ObservationView) -> bool:
    """Tell whether device memory is short, or was all that was asked about: then no steps were watched."""
    if not view.is_watched:
        return True
    ranks = [] if isinstance(view.observation.memory, Unknown) else view.observation.memory
    counters = [one for process in view.processes for one in process.allocators]
    ran_short = any(one.num_ooms or one.num_alloc_retries for one in counters)
    full = any(one.peak_reserved_bytes >= policy.SHORT_MEMORY * one.total_bytes for one in counters)
    return ran_short or full or any(_share_in_use(rank) >= policy.SHORT_MEMORY for rank in ranks)


def has_room(view: ObservationView) -> bool:
    """Tell whether the memory in which the program works is known to have room."""
    if view.uses_cuda:
        return bool(view.allocators) and not is_short(view)
    total, available = (view.number_or_none(f"host.memory{name}_bytes") for name in ("", "_available"))
    return bool(total) and available is not None and available >= (1 - policy.SHORT_MEMORY) * (total or 0.0)


def _share_in_use(rank: RankMemory) -> float:
    """Return the share of the memory that the process can use, and uses at its peak; 0 if that is not
    known."""
    others_bytes = 0 if isinstance(rank.others_bytes, Unknown) else rank.others_bytes
    limit_bytes = (rank.total_bytes or 0) - others_bytes
    share = rank.facts.get("memory_fraction")
    if isinstance(share, int | float) and share > 0:
        limit_bytes = min(limit_bytes, round(share * (rank.total_bytes or 0)))
    return rank.peak.total_bytes / limit_bytes if isinstance(rank.peak, Moment) and limit_bytes > 0 else 0.0
