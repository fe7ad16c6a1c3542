"""Count the files of src/dynotune that name a knob: where somebody looks who changes the knob or gives it a
value.

    python tools/knob_files.py [CHECKOUT]         prints each knob of which several files know
    python tools/knob_files.py CHECKOUT KNOB      prints the files of one knob

`docs/decisions/0053-one-row-for-each-knob.md` has the counts from before the rows, and after.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
READ = (".py", ".toml", ".md")
# `python` is an ordinary word, and the other two stand for knobs of any name.
NOT_COUNTED = ("python", "env.NAME", "arg.NAME")


class Places(NamedTuple):
    """Files that name a knob: modules, and data files besides the catalogue."""

    code: list[str]
    data: list[str]


def places_of_knobs(checkout: Path) -> dict[str, Places]:
    """Return the files that name each knob, relative to the package, for the catalogue of a checkout."""
    package = checkout / "src" / "dynotune"
    texts = {
        str(path.relative_to(package)): path.read_text("utf-8")
        for path in sorted(package.rglob("*"))
        if path.suffix in READ
    }
    catalogue = "knobs/catalogue.toml"
    return {
        knob_id: Places(
            [name for name in _naming(knob_id, texts) if name.endswith(".py")],
            [name for name in _naming(knob_id, texts) if not name.endswith(".py") and name != catalogue],
        )
        for knob_id in tomllib.loads(texts[catalogue])
        if knob_id not in NOT_COUNTED
    }


def _naming(knob_id: str, texts: dict[str, str]) -> Iterator[str]:
    word = re.compile(rf"(?<![\w.]){re.escape(knob_id)}(?![\w])")
    return (name for name, text in texts.items() if word.search(text))


def main(argv: list[str]) -> None:
    checkout = Path(argv[0]) if argv else ROOT
    found = places_of_knobs(checkout)
    for knob_id in argv[1:]:
        print("\n".join([*found[knob_id].code, *found[knob_id].data]))
    if len(argv) < 2:
        for knob_id, (code, data) in sorted(found.items(), key=lambda row: -len(row[1].code + row[1].data)):
            print(f"{knob_id:36} {len(code):3} modules {len(data):3} data files")


if __name__ == "__main__":
    main(sys.argv[1:])
