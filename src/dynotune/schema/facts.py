"""What was observed, or the reason why it was not."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import msgspec

P = ParamSpec("P")
T = TypeVar("T")


class Unknown(msgspec.Struct, frozen=True, tag="unknown"):
    """A fact that could not be had. Unknown is never zero. `reason`: why, in words for the user."""

    reason: str


class Missing(Exception):
    """Error: something that a fact rests on is Unknown; `or_unknown` gives that as the fact."""

    def __init__(self, unknown: Unknown) -> None:
        super().__init__(unknown.reason)
        self.unknown = unknown


def needed(value: T | Unknown) -> T:
    """Give `value`, which something rests on. Raises Missing where it is Unknown."""
    if isinstance(value, Unknown):
        raise Missing(value)
    return value


def or_unknown(source: str = "") -> Callable[[Callable[P, T]], Callable[P, T | Unknown]]:
    """Let a function return Unknown where something that it needs is missing.

    `source`, where it is named, may fail with OSError or ValueError: then the reason is that it cannot be read.
    """

    def decorate(question: Callable[P, T]) -> Callable[P, T | Unknown]:
        @functools.wraps(question)
        def ask(*args: P.args, **kwargs: P.kwargs) -> T | Unknown:
            try:
                return question(*args, **kwargs)
            except Missing as missing:
                return missing.unknown
            except (OSError, ValueError) as error:
                if not source:
                    raise
                return Unknown(f"{source} cannot be read: {error}")

        return ask

    return decorate


Value = bool | int | float | str | None | list[int | str]
Facts = dict[str, Value | Unknown]
"""Dotted name (`gpu.compute_capability`) to value. A name that is absent was not asked for."""


def known(facts: Facts, name: str) -> Value:
    """Return the fact; None if it is not known, or was not asked for."""
    value = facts.get(name)
    return None if isinstance(value, Unknown) else value
