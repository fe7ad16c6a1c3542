"""What is known of a finding, and of advice that does not do what people say."""

from __future__ import annotations

from typing import Literal

import msgspec


class Folklore(msgspec.Struct, frozen=True, kw_only=True):
    """A popular remedy that is none, or not for what it is recommended.

    Args:
        about: words by which it is asked for.
        claim: what people say.
        does, does_not: what it changes, and what it does not.
        instead: what to do for what they want.
        bears_on: ids of findings that it is about.
        seen: where it was seen on this machine; "" where it was asked for.
    """

    id: str
    about: list[str]
    claim: str
    does: str
    does_not: str
    instead: str
    source: str
    bears_on: list[str] = []
    seen: str = ""


class Explained(msgspec.Struct, frozen=True, kw_only=True):
    """A finding, from its rule.

    Args:
        scope: "machine" is judged from facts alone, "program" from a command that was watched.
        family: of rules.
        explains: ids of more general findings whose reason it is.
        settings: that it may name as candidates.
    """

    id: str
    title: str
    scope: Literal["machine", "program"]
    family: str
    sees: str
    costs: str
    wrong: str
    explains: list[str] = []
    settings: list[str] = []


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """`dynotune explain --json` and `dynotune doctor --about --json`."""

    schema: str = "dynotune.explanation/1"
    asked: str
    finding: Explained | None = None
    folklore: list[Folklore] = []
