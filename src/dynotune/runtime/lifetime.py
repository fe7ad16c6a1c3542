"""Track whether an object that owns device memory may still be used."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dynotune.runtime.errors import ClosedError, ForkedError

if TYPE_CHECKING:
    from typing import Self


class Lifetime:
    """Guard against use after `close()` and in forked children. `name`: the object's name in errors."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._process_id = os.getpid()
        self.closed = False

    @property
    def is_ours(self) -> bool:
        """Return whether this process made the object."""
        return os.getpid() == self._process_id

    def check(self) -> None:
        """Raise ClosedError after `close()`, ForkedError in a forked child."""
        if not self.is_ours:
            raise ForkedError(
                f"{self._name} was made in process {self._process_id} and is used in process "
                f"{os.getpid()}, forked "
                "from it: CUDA and locks do not survive a fork.",
                hint=f"Make the {self._name} in the child, or start the child with the `spawn` method.",
            )
        if self.closed:
            raise ClosedError(f"{self._name} was used after close().", hint=f"Make a new {self._name}.")

    def close(self) -> bool:
        """Return whether the caller has to free resources now: only once, and never in a forked child."""
        first = not self.closed and self.is_ours
        self.closed = True
        return first


class Closing:
    """An object with a `Lifetime`; a `with` statement closes it at the end."""

    _lifetime: Lifetime

    def close(self) -> None:
        """Free the object's resources."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._lifetime.check()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
