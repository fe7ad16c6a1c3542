"""Read the ledger of claims: what articles say, and how dynotune tests each claim."""

import functools
import tomllib
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from dynotune.schema import document
from dynotune.schema.claims import Claim
from dynotune.schema.errors import UsageError

FILE = Path(__file__).with_name("ledger.toml")
TEXTS = ("says", "fact", "instead")


@functools.cache
def all_claims() -> tuple[Claim, ...]:
    """Return all claims, in the order of the articles that make them."""
    data = tomllib.loads(FILE.read_text(encoding="utf-8"))
    claims = []
    for id_, of in data["claims"].items():
        fields = {"id": id_, **dict(zip(TEXTS, of["text"], strict=False)), **of["of"]}
        fields["source"] = data["sources"].get(fields["source"], fields["source"])
        claims.append(document.convert(fields, Claim))
    return tuple(claims)


def named(ids: Sequence[str]) -> list[Claim]:
    """Return the claims with these ids or rows of articles.

    Raises UsageError: a claim does not exist; the hint has the nearest ids.
    """
    known = {claim.article or claim.id: claim for claim in all_claims()}
    known |= {claim.id: claim for claim in all_claims()}
    for id_ in ids:
        if id_ not in known:
            near = get_close_matches(id_.lower(), list(known), cutoff=0.4)
            hint = f"Did you mean {' or '.join(near)}? " if near else ""
            raise UsageError(f"There is no claim {id_!r}.", hint=f"{hint}dynotune claims list shows all.")
    return [known[id_] for id_ in ids]
