"""Figures in the evidence for a cause, as text."""

from dynotune.trace.facts.rank_facts import RankFacts


def percent(part: float) -> str:
    return f"{100 * part:.1f}%"


def duration(time_ns: float) -> str:
    """Return a duration in nanoseconds as text, in ns, µs, ms or s to suit its size."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if time_ns >= size:
            return f"{time_ns / size:.3g} {unit}"
    return f"{time_ns:.0f} ns"


def per_step(facts: RankFacts, num: int) -> str:
    """Return a number of events as text, divided by the number of steps if steps are known."""
    if facts.num_steps is None:
        return f"{num:,} in the window"
    rate = num / facts.num_steps
    if rate < 1:
        return f"{num:,} in {facts.num_steps:,} steps"
    return f"{rate:,.0f} a step" if rate >= 100 else f"{rate:.3g} a step"


def of_step(facts: RankFacts, time_ns: float) -> str:
    """Return nanoseconds of the window as text, per step if steps are known, as `per_step` counts."""
    return duration(time_ns / (facts.num_steps or 1))


def time_per_step(facts: RankFacts, time_ns: float) -> str:
    return of_step(facts, time_ns) + ("" if facts.num_steps is None else " a step")
