"""Facts that were observed, or the reason why they are not known."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import msgspec

P = ParamSpec("P")
T = TypeVar("T")


class Unknown(msgspec.Struct, frozen=True, tag="unknown"):
    """A fact that is not known (unlike a fact that is zero). `reason`: why, as a text for the user."""

    reason: str


NOT_ASKED = Unknown("not asked for")
"""What nobody asked for, which a report leaves out."""


class Missing(Exception):
    """Error: a fact depends on an Unknown. `or_unknown` returns this Unknown instead of raising."""

    def __init__(self, unknown: Unknown) -> None:
        super().__init__(unknown.reason)
        self.unknown = unknown


def needed(value: T | Unknown) -> T:
    """Return `value`, on which another fact depends. Raises Missing: `value` is Unknown."""
    if isinstance(value, Unknown):
        raise Missing(value)
    return value


def or_unknown(source: str = "") -> Callable[[Callable[P, T]], Callable[P, T | Unknown]]:
    """Decorate a function to return Unknown if a fact that the function needs is missing.

    With `source`, the function may also raise OSError or ValueError: the reason is then that `source` is
    unreadable.
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
"""Facts by dotted name (`gpu.compute_capability`). A fact whose name is absent was not asked for."""


def known(facts: Facts, name: str) -> Value:
    """Return the fact; None if the fact is not known, or was not asked for."""
    value = facts.get(name)
    return None if isinstance(value, Unknown) else value
