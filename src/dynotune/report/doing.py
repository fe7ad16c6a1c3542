"""What a process that measures does now: what its line of progress and its live page say."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Doing:
    """What the process that measures does now, as far as whoever looks knows it.

    Args:
        what: what runs now; "" if it is not known.
        spent_s: seconds since the document's process, or the looking one, began; None if not known.
        left_s: seconds until the end; None if not known.
        has_ended: whether nothing measures any more, though the document is unfinished.
    """

    what: str = ""
    spent_s: float | None = None
    left_s: float | None = None
    has_ended: bool = False
