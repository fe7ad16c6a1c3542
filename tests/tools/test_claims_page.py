from __future__ import annotations

from pathlib import Path

from claims_page import page

from dynotune.claims import all_claims

PAGE = Path(__file__).parents[2] / "docs/reference/claims.md"


def test_the_page_of_claims_is_the_one_that_claims_and_bundles_make():
    assert PAGE.read_text(encoding="utf-8") == page(), "make claims writes it anew"


def test_every_claim_stands_on_the_page():
    text = page()
    assert all(f"### {claim.id}\n" in text for claim in all_claims())
