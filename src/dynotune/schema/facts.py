"""What was observed, or the reason why it was not."""

from __future__ import annotations

import msgspec


class Unknown(msgspec.Struct, frozen=True, tag="unknown"):
    """A fact that could not be had. Unknown is never zero.

    Args:
        reason: why, in words for the user.
    """

    reason: str


Value = bool | int | float | str | None | list[int | str]
Facts = dict[str, Value | Unknown]
"""Dotted name (`gpu.compute_capability`) to value. A name that is absent was not asked for."""
