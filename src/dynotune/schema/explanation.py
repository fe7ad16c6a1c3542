"""Explanation of a finding or of claims, as `dynotune explain` gives it."""

from typing import Literal

import msgspec

from dynotune.schema.claims import Claim


class Explained(msgspec.Struct, frozen=True, kw_only=True):
    """A finding, as its rule declares it.

    Args:
        scope: "machine" for a rule that needs only facts, "program" for a rule that needs a watched command.
        family: family of the rule.
        example: lines of Python that the finding is about, or commands of a shell, which begin with `$ `, and
            what they print.
        explains: ids of more general findings whose cause this finding names.
        settings: settings that the finding may name as candidates.
    """

    id: str
    title: str
    scope: Literal["machine", "program"]
    family: str
    sees: str
    costs: str
    wrong: str
    example: str = ""
    explains: list[str] = []
    settings: list[str] = []


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Document of `dynotune explain --json`. `near`: title of each finding that speaks of the word, by its
    id."""

    schema: str = "dynotune.explanation/2"
    asked: str
    finding: Explained | None = None
    claims: list[Claim] = []
    near: dict[str, str] = {}
