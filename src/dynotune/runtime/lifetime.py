"""Whether a thing that holds device memory may still be used."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dynotune.runtime.errors import ClosedError, ForkedError

if TYPE_CHECKING:
    from typing import Self


class Lifetime:
    """Guard against use after `close()` and in forked children. `name`: what the error calls the thing."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._process_id = os.getpid()
        self.closed = False

    @property
    def is_ours(self) -> bool:
        """Tell whether this is the process that made the thing."""
        return os.getpid() == self._process_id

    def check(self) -> None:
        """Raise ClosedError after `close()`, ForkedError in a forked child."""
        if not self.is_ours:
            raise ForkedError(
                f"{self._name} was made in process {self._process_id} and is used in process {os.getpid()}, forked "
                "from it: CUDA and locks do not survive a fork.",
                hint=f"Make the {self._name} in the child, or start the child with the `spawn` method.",
            )
        if self.closed:
            raise ClosedError(f"{self._name} was used after close().", hint=f"Make a new {self._name}.")

    def close(self) -> bool:
        """Tell whether the caller has to give things back now: once, and never in a forked child."""
        first = not self.closed and self.is_ours
        self.closed = True
        return first


class Closing:
    """A thing with a `Lifetime` that can be used in a `with` statement: it is closed at the end."""

    _lifetime: Lifetime

    def close(self) -> None:
        """Give back what it holds."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._lifetime.check()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
