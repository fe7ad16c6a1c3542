"""How many processes one GPU carries: by memory, and by throughput, from runs of one and of two at once.

Two processes that hinder each other make 2 r1 / (1 + a) together, where r1 is what one makes alone; N make
N r1 / (1 + a (N - 1)). With a = 0 they do not meet; with a = 1 more of them make no more than one.
"""

from __future__ import annotations

from dynotune.schema.facts import Unknown
from dynotune.schema.memory import Processes

LEAST_GAIN = 0.05
"""Of what all make together: one process more that adds less is not worth its memory."""
MOST = 1000


def processes(
    process_bytes: int | Unknown, limit_bytes: int, *, one_per_s: float, two_per_s: float, asked_per_s: float | None
) -> Processes:
    """What fits beside each other.

    Args:
        process_bytes: of one; `limit_bytes`: of the card, margin taken off.
        one_per_s, two_per_s: steps or samples of one process alone, and of two together.
        asked_per_s: that each process must make; None to add processes for as long as that pays.
    """
    hindrance = max(0.0, 2 * one_per_s / two_per_s - 1)

    def each(num: int) -> float:
        return one_per_s / (1 + hindrance * (num - 1))

    def pays(num: int) -> bool:
        if asked_per_s is not None:
            return each(num) >= asked_per_s
        return num == 1 or num * each(num) >= (1 + LEAST_GAIN) * (num - 1) * each(num - 1)

    by_throughput = next((num - 1 for num in range(1, MOST) if not pays(num)), MOST)
    by_memory = process_bytes if isinstance(process_bytes, Unknown) else max(0, limit_bytes // process_bytes)
    most = by_throughput if isinstance(by_memory, Unknown) else min(by_throughput, by_memory)
    return Processes(
        one_per_s=one_per_s,
        two_per_s=two_per_s,
        asked_per_s=asked_per_s,
        by_memory=by_memory,
        by_throughput=by_throughput,
        most=most,
    )
