"""Writes docs/reference/knobs.md from the catalogue: `python tools/knobs_page.py > FILE`."""

from __future__ import annotations

from dynotune import knobs
from dynotune.schema.knob import Knob

HEAD = """# Knobs

This page lists every knob: a parameter that `compare`, `tune` and `run` can set for a command (`knob=value`) and read
back. `dynotune knobs ID` shows a knob in the terminal. Effects: `exact` settings leave results as they are, `numerics`
round differently, `sampling` draw other random numbers, `semantics` change what is computed, `system` reach beyond the
process.

`make knobs` generates this page from the catalogue.
"""  # noqa: E501


def page() -> str:
    """Return the page, with the knobs in the catalogue's order, a section per family."""
    lines, family = [HEAD], ""
    for knob in knobs.all_knobs():
        if (found := knob.id.partition(".")[0]) != family:
            family = found
            lines.append(f"## {family}\n")
        lines.append(_section(knob))
    return "\n".join(lines).rstrip() + "\n"


def _section(knob: Knob) -> str:
    rows = {
        "Values": _values(knob),
        "Default": _escaped(knob.default),
        "Effect": f"`{knob.effect}`",
        "Set at the latest": f"`{knob.when}`",
        "Does not apply": _escaped(knob.unless),
        "Not switched while the program runs": _escaped(knob.not_switched),
        "Pitfalls": _escaped(knob.hurts),
        "Source": f"<{knob.source}>" if knob.source.startswith("https:") else _escaped(knob.source),
    }
    listed = [f"- **{name}**: {text}" for name, text in rows.items() if text]
    return "\n".join([f"### `{knob.id}`\n", f"{_escaped(knob.doc)}\n", *listed]) + "\n"


def _values(knob: Knob) -> str:
    if knob.values:
        return ", ".join(f"`{value}`" for value in knob.values)
    ends = [f"at least {_number(knob.minimum)}"] if knob.minimum is not None else []
    ends += [f"at most {_number(knob.maximum)}"] if knob.maximum is not None else []
    return ", ".join([f"`{knob.type}`", *ends])


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:g}"


def _escaped(text: str) -> str:
    for mark in "_*<":
        text = text.replace(mark, f"\\{mark}")
    return text


if __name__ == "__main__":
    print(page(), end="")
