"""Read the ledger of claims: what articles say, and how dynotune tests each claim."""

import functools
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import msgspec

from dynotune.schema import document
from dynotune.schema.claims import Claim
from dynotune.schema.data_file import table
from dynotune.schema.errors import UsageError

TEXTS = ("says", "fact", "instead")


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A claim of ledger.toml, whose head explains the fields. `of`: fields of `Claim`."""

    text: tuple[str, ...]
    of: dict[str, Any]


class _Ledger(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file ledger.toml. `sources`: addresses of the sources that several claims name."""

    sources: dict[str, str]
    claims: dict[str, _Entry]


@functools.cache
def all_claims() -> tuple[Claim, ...]:
    """Return all claims, in the order of the articles that make them."""
    ledger = table(__package__, "ledger.toml", _Ledger)
    claims = []
    for id_, entry in ledger.claims.items():
        fields = {"id": id_, **dict(zip(TEXTS, entry.text, strict=False)), **entry.of}
        fields["source"] = ledger.sources.get(fields["source"], fields["source"])
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
