"""Count the batches that this process made, and the times that making them took."""

from __future__ import annotations

from time import perf_counter

from .kernel_counters import bytes_read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# Attributes of `Counts` that the event `fetching` has under the same names.
FIELDS = (
    "begin_s",
    "num",
    "fetch_s",
    "collate_s",
    "decode_s",
    "cpu_s",
    "system_s",
    "num_faults",
    "longest_s",
    "decoded",
    "private_bytes",
)


class Counts:
    """Number and times (s) of the batches that one data set and collate function made in this process."""

    def __init__(self, facts: dict[str, Any], worker: Any, clock: Callable[[], float]) -> None:
        self.facts = facts
        self.worker = worker
        self.clock = clock
        self.begin_s = self.said_s = perf_counter()
        self.num = self.num_faults = 0
        self.fetch_s = self.longest_s = self.cpu_s = self.system_s = self.collate_s = self.decode_s = 0.0
        self.decoders: set[str] = set()
        self.decoded: list[str] = []  # some of the files
        self.private_bytes: int | None = None
        self.private_due_s = 0.0
        self.bytes_before = bytes_read()
