"""Events that are not counted yet, while the step is searched for."""

from __future__ import annotations

from . import cycle as cycles

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_EVENTS = 1 << 20


class History:
    """Events that are not counted yet."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.times: list[float] = []
        self._rest: list[tuple[float, int | None, bool]] = []

    def add(self, number: int, now: float, wait_s: float, num_samples: int | None, begins: bool) -> int:
        """Remember an event; how many there are."""
        if len(self.numbers) < MAX_EVENTS:
            self.numbers.append(number)
            self.times.append(now)
            self._rest.append((wait_s, num_samples, begins))
        return len(self.numbers)

    def events(self) -> Iterator[tuple[int, float, float, int | None, bool]]:
        for number, now, rest in zip(self.numbers, self.times, self._rest):
            yield (number, now, *rest)

    def begin_s(self, sequence: list[int] | None) -> float:
        """When the first event of `sequence` (any, when None) began: with the wait for it."""
        for number, now, (wait_s, _, _) in zip(self.numbers, self.times, self._rest):
            if sequence is None or number in sequence:
                return now - wait_s
        return self.times[0]


class AllDraws:
    """All loaders' numbers: where steps are marked by hand every draw counts."""

    def __init__(self, tokens: list[cycles.Token]) -> None:
        self._tokens = tokens

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and self._tokens[number].kind == cycles.DRAW

    def __bool__(self) -> bool:
        return any(token.kind == cycles.DRAW for token in self._tokens)
