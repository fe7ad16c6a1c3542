"""Facts that were observed, or the reason why they are not known."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import msgspec

P = ParamSpec("P")
T = TypeVar("T")


class Unknown(msgspec.Struct, frozen=True, tag="unknown"):
    """A fact that is not known, which is never the same as zero. `reason`: why, in words for the user."""

    reason: str


class Missing(Exception):
    """Error: a fact depends on an Unknown; `or_unknown` returns that Unknown instead."""

    def __init__(self, unknown: Unknown) -> None:
        super().__init__(unknown.reason)
        self.unknown = unknown


def needed(value: T | Unknown) -> T:
    """Return `value`, on which a fact depends. Raises Missing if it is Unknown."""
    if isinstance(value, Unknown):
        raise Missing(value)
    return value


def or_unknown(source: str = "") -> Callable[[Callable[P, T]], Callable[P, T | Unknown]]:
    """Make a function return Unknown if a fact that it needs is missing.

    If `source` is given, the function may also raise OSError or ValueError: then `source` cannot be read.
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
"""Dotted name (`gpu.compute_capability`) to value. An absent name was not asked for."""


def known(facts: Facts, name: str) -> Value:
    """Return the fact; None if it is not known, or was not asked for."""
    value = facts.get(name)
    return None if isinstance(value, Unknown) else value
