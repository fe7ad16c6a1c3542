"""Count Python's objects by type, before and after some steps, to see which ones the steps leave behind."""

from __future__ import annotations

from ..core.living_objects import living_objects
from ..core.tensors import name_of
from .task import Task

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST_OBJECTS = 5_000_000
"""Beyond it, one count takes more than half a second."""
MOST_TYPES = 20


class CountObjects(Task):
    """Count twice, `num_steps` steps apart. Objects that Python does not track, such as numbers and numpy's
    arrays, are left out. Nothing is collected before a count, so garbage in cycles counts until Python
    collects it.
    """

    event = "objects"

    def begin(self, num_steps: int) -> int:
        self._length = max(1, int(self.order["num_steps"]))
        self._first_step = num_steps
        self._before = _counts()
        if self._before is None:
            self.give_up("there are more than %d objects" % MOST_OBJECTS)
        return num_steps + self._length

    def step_ended(self, num_steps: int) -> int:
        after, before = _counts(), self._before
        if after is None or before is None:
            self.give_up("there are more than %d objects" % MOST_OBJECTS)
            return num_steps
        grown = {kind: num - before.get(kind, 0) for kind, num in after.items() if num > before.get(kind, 0)}
        most = sorted(grown, key=lambda kind: -grown[kind])[:MOST_TYPES]
        self.complete(
            num_steps=num_steps - self._first_step,
            grown=[{"name": name_of(kind), "num": after[kind], "growth": grown[kind]} for kind in most],
        )
        return num_steps

    def clean_up(self) -> None:
        self._before = None  # it keeps classes of the program alive


def _counts() -> dict[type, int] | None:
    """Return the number of objects of each type; None if there are too many to count."""
    objects: Any = living_objects()
    if len(objects) > MOST_OBJECTS:
        return None
    counts: dict[type, int] = {}
    for one in objects:
        kind = type(one)
        counts[kind] = counts.get(kind, 0) + 1
    return counts
