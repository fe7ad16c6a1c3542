"""What rules about the start share: how much a start that was timed loses, and in which words."""

from __future__ import annotations

from dynotune.doctor import policy
from dynotune.doctor.machine import known_number
from dynotune.doctor.seen import Seen
from dynotune.report import words
from dynotune.schema.diagnosis import Severity


def severity_of_start(seen: Seen) -> Severity:
    """By what a warm cache saves of a start that was timed."""
    saved_s = known_number(seen, "start.saved_s")
    if saved_s is None:
        return "medium"
    return "high" if saved_s >= policy.MUCH_OF_START_S else "medium" if saved_s >= policy.SOME_OF_START_S else "low"


def what_it_saves(seen: Seen) -> list[str]:
    """For evidence, where starts were timed."""
    cold_s, warm_s = known_number(seen, "start.cold_s"), known_number(seen, "start.warm_s")
    if cold_s is None or warm_s is None:
        return []
    return [f"{words.duration(cold_s)} to the first step with the caches cold, {words.duration(warm_s)} with them warm"]
