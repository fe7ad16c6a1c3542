"""What is known of a finding, and of advice that does not do what people say."""

from typing import Literal

import msgspec

from dynotune.schema.claims import Claim


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
    """Document of `dynotune explain --json`."""

    schema: str = "dynotune.explanation/2"
    asked: str
    finding: Explained | None = None
    claims: list[Claim] = []
