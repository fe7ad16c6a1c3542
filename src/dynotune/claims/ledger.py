"""The claims, from the package's own data."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from dynotune.schema import document
from dynotune.schema.claims import Claim
from dynotune.schema.errors import UsageError

FILE = Path(__file__).with_name("ledger.toml")


def titles() -> dict[str, str]:
    """Return the articles' titles by their numbers."""
    return dict(_data()["articles"])


@functools.cache
def _data() -> dict[str, Any]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


@functools.cache
def ledger() -> tuple[Claim, ...]:
    """Return all claims, in the articles' order."""
    claims = []
    for id_, table in _data()["claims"].items():
        fields = {"id": id_, **table, **table["of"]}
        del fields["of"]
        source = fields["source"]
        claims.append(document.convert(fields | {"source": _data()["sources"].get(source, source)}, Claim))
    return tuple(claims)


def named(ids: Sequence[str]) -> list[Claim]:
    """Return the claims with these ids, or rows of articles.

    Raises:
        UsageError: there is none; the hint holds the nearest ids.
    """
    known = {claim.article: claim for claim in ledger()} | {claim.id: claim for claim in ledger()}
    for id_ in ids:
        if not id_ or id_ not in known:
            near = get_close_matches(id_.lower(), list(known), cutoff=0.4)
            hint = f"Did you mean {' or '.join(near)}? " if near else ""
            raise UsageError(f"There is no claim {id_!r}.", hint=f"{hint}dynotune claims list shows all.")
    return [known[id_] for id_ in ids]
