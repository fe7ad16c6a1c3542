"""Writes docs/reference/from-elsewhere.md from the allow-list:
`python tools/from_elsewhere_page.py > FILE`.
"""

from __future__ import annotations

from collections.abc import Iterable

from dynotune import knobs
from dynotune.schema.knob import OWN_VALUES

HEAD = """# Settings from elsewhere

A recipe, a pack of caches, a study of another machine and a folder of results may come from other people.
dynotune applies a setting that stands in one of these only if this page lists the knob, and only with a
value that the page accepts. It names any other setting, with the line that you can type if you trust it,
because such a setting could make the command load foreign code. What you type yourself is always applied.

No value below is the path of a file, a library or an address, and none is imported. A pattern has to match
the whole value.

`make knobs` generates this page from the fields `from_elsewhere` of the catalogue, and from the list of
variables that have no entry there.
"""

TYPED = """Values of these knobs choose code, or name a folder of code that will run. Any variable that this
page does not list must be typed, too.
"""


def page() -> str:
    """Return the page. Rows of one pattern stand together, so that a reviewer sees each pattern once."""
    rows = knobs.allow_list()
    by_pattern: dict[str, list[str]] = {}
    for row in rows.values():
        by_pattern.setdefault(row.values, []).append(row.knob)
    typed = [knob.id for knob in knobs.all_knobs() if knob.id not in rows]
    patterns = [pattern for pattern in by_pattern if pattern not in ("", OWN_VALUES)]
    own = {id_: _accepted(id_) for id_ in by_pattern[OWN_VALUES]}
    lines = [
        HEAD,
        "## Values that the knob accepts\n",
        "| knob | values |",
        "| --- | --- |",
        *(f"| `{id_}` | {values} |" for id_, values in own.items()),
        "\n## Values that a pattern matches\n",
        "A variable below may also be removed (`@unset`).\n",
        "| pattern | knobs |",
        "| --- | --- |",
        *(f"| {_code(pattern)} | {_listed(by_pattern[pattern])} |" for pattern in patterns),
        "\n## Variables that may only be removed\n",
        "These are left over from debugging, and findings offer to remove them.\n",
        f"{_listed(by_pattern[''])}.",
        "\n## Knobs that must be typed\n",
        TYPED,
        f"{_listed(typed)}.",
    ]
    return "\n".join(lines) + "\n"


def _accepted(knob_id: str) -> str:
    knob = knobs.get(knob_id)
    if knob.values:
        return ", ".join(f"`{value}`" for value in knob.values)
    return {"bool": "`true`, `false`", "int": "a whole number", "float": "a number"}[knob.type]


def _code(pattern: str) -> str:
    """Return a pattern as code in a cell of a table, where `|` has to be escaped."""
    return f"`{pattern}`".replace("|", "\\|")


def _listed(ids: Iterable[str]) -> str:
    return ", ".join(f"`{id_}`" for id_ in ids)


if __name__ == "__main__":
    print(page(), end="")
