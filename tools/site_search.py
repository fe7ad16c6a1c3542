"""Type what people type into the search of a built site, and say what it finds.

    python tools/site_search.py .site               all of site_queries.toml; exit code 1 if one misses
    python tools/site_search.py .site "ddp hangs"   the first pages for this query

node runs the search's own worker, so this is what a reader gets.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
FIRST = 5
"""Results that stand on the first screen of the search."""


def queries() -> dict[str, list[str]]:
    """Return what people type, with the pages that answer it."""
    found: dict[str, list[str]] = tomllib.loads((HERE / "site_queries.toml").read_text(encoding="utf-8"))
    return found


def results(site: Path, typed: list[str]) -> dict[str, list[str]]:
    """Return the pages that the search lists for each query, the best first, as `symptoms/ddp-slow`."""
    words = ["node", str(HERE / "site_search.mjs"), str(site)]
    done = subprocess.run(words, input=json.dumps(typed), capture_output=True, text=True, check=True)
    listed: dict[str, list[str]] = json.loads(done.stdout)
    return {query: [page.removesuffix(".html") for page in pages] for query, pages in listed.items()}


def misses(site: Path) -> dict[str, list[str]]:
    """Return the queries without a right page among the first results, with what is there instead."""
    right, found = queries(), results(site, list(queries()))
    return {query: found[query][:FIRST] for query in right if not {*found[query][:FIRST]} & {*right[query]}}


def main() -> int:
    site, *typed = sys.argv[1:]
    if typed:
        for query, pages in results(Path(site), typed).items():
            print(query, *pages[:FIRST], sep="\n  ")
        return 0
    wrong = misses(Path(site))
    for query, pages in wrong.items():
        print(f"{query}: {', '.join(pages) or 'nothing'}")
    print(
        f"{len(queries()) - len(wrong)} of {len(queries())} queries find their page among the first {FIRST}"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
