"""Small numbers for the objects that events come from: loaders, modules, optimizers and captured graphs."""

from __future__ import annotations

import weakref

from ..core.annotations import Any, Key
from .cycle import DRAW, Token


class Identities:
    """`tokens` and `classes` by number. What takes the place of something that has died takes its number, too."""

    def __init__(self) -> None:
        self.tokens: list[Token] = []
        self.classes: dict[int, type] = {}
        # Loaders by their key; all else by identity, as long as it lives.
        self._keys: dict[Key, Key] = {}
        self._draws: dict[Key, int] = {}
        self._datasets: dict[Key, weakref.ref[Any]] = {}
        self._numbers: dict[tuple[str, int, bool], tuple[weakref.ref[Any], int]] = {}

    def loader_made(self, key: Key, dataset: Any) -> Key:
        """Return the one object that stands for all keys equal to this one."""
        key = self._keys.setdefault(key, key)
        if key not in self._draws:
            self._take_over(key)
        try:
            self._datasets[key] = weakref.ref(dataset)
        except TypeError:  # a list: whether it is dead cannot be known
            self._datasets.pop(key, None)
        return key

    def _take_over(self, key: Key) -> None:
        """Give a loader of new data the number of one just like it whose data have died, as of an earlier fold."""
        for other, dataset in self._datasets.items():
            if dataset() is None and (other[0], other[2:]) == (key[0], key[2:]) and other in self._draws:
                self._draws[key] = self._draws.pop(other)
                del self._datasets[other]
                return

    def of_loader(self, key: Key) -> int:
        number = self._draws.get(key)
        if number is None:
            number = self._draws[key] = self._new(DRAW, key[0].__name__)
        return number

    def number_of_loader(self, key: Key) -> int | None:
        """Return the number of a loader that was drawn from."""
        return self._draws.get(key)

    def of(self, kind: str, thing: Any, with_grad: bool) -> int:
        entry = self._numbers.get((kind, id(thing), with_grad))
        if entry is not None and entry[0]() is thing:
            return entry[1]
        return self._meet(kind, thing, with_grad)

    def references(self, number: int) -> list[weakref.ref[Any]]:
        """Return references to all things that bore the number, the latest last."""
        return [reference for reference, other in self._numbers.values() if other == number]

    def _meet(self, kind: str, thing: Any, with_grad: bool) -> int:
        """Number a thing not seen before; it takes over the number of one of its class that has died."""
        number = None
        for (other_kind, _, other_grad), (reference, other) in self._numbers.items():
            same = (other_kind, other_grad, self.classes[other]) == (kind, with_grad, type(thing))
            if same and reference() is None:
                number = other
                break
        if number is None:
            number = self._new(kind, type(thing).__name__, with_grad)
            self.classes[number] = type(thing)
        self._numbers[(kind, id(thing), with_grad)] = weakref.ref(thing), number
        return number

    def _new(self, kind: str, name: str, with_grad: bool = False) -> int:
        self.tokens.append(Token(kind, name, with_grad))
        return len(self.tokens) - 1
