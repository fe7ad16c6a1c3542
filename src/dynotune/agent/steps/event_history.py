"""Keep a program's events while its step is still unknown."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_EVENTS = 1 << 20


class History:
    """Events that are not counted yet, because the program's step is still unknown."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.times: list[float] = []
        self._rest: list[tuple[float, int | None, bool]] = []

    def add(self, number: int, now: float, wait_s: float, num_samples: int | None, begins: bool) -> int:
        if len(self.numbers) < MAX_EVENTS:
            self.numbers.append(number)
            self.times.append(now)
            self._rest.append((wait_s, num_samples, begins))
        return len(self.numbers)

    def renumber(self, numbers: dict[int, int]) -> None:
        self.numbers = [numbers.get(number, number) for number in self.numbers]

    def events(self) -> Iterator[tuple[int, float, float, int | None, bool]]:
        for number, now, rest in zip(self.numbers, self.times, self._rest):
            yield (number, now, *rest)

    def constant_size(self, number: int) -> int | None:
        """Return the number of samples of each event `number`, if that is known and always the same."""
        sizes = {rest[1] for event, rest in zip(self.numbers, self._rest) if event == number}
        return sizes.pop() if len(sizes) == 1 else None

    def begin_s(self, sequence: list[int] | None) -> float:
        """Return when the first event of `sequence` began, including the wait for that event.

        `sequence`: numbers of events; None for any event.
        """
        for number, now, (wait_s, _, _) in zip(self.numbers, self.times, self._rest):
            if sequence is None or number in sequence:
                return now - wait_s
        return self.times[0]
