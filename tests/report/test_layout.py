"""Columns of the terminal in signs that it has."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.text import Text

from dynotune.cli import signs
from dynotune.report import layout

ROWS = [("295 → 354 ±1%", "1.20×"), ("plain", "0.5 µs"), ("−3 °C", "…")]


def printed(renderable: object, encoding: str, *, width: int = 80) -> list[str]:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    signs.let_pass(file)
    Console(file=file, width=width, legacy_windows=False).print(renderable)
    file.flush()
    return [line.rstrip() for line in file.buffer.getvalue().decode(encoding).splitlines()]  # type: ignore[attr-defined]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_columns_begin_at_one_place_when_the_terminal_lacks_signs(encoding):
    table = layout.table(":whole", ":number", ":text")
    for name, number in ROWS:
        table.add_row(name, Text(number), "end")
    lines = printed(table, encoding)
    assert len({line.index("end") for line in lines}) == 1
    assert ("->" in lines[0]) == (encoding != "utf-8")
    assert ("µ" in lines[1]) == (encoding != "ascii")


def test_a_text_that_is_cut_stays_in_its_column_when_the_terminal_lacks_the_sign_for_it():
    table = layout.table(":line", ":whole")
    table.add_row(layout.one_line("a name that is much too long for the room"), "end")
    table.add_row(layout.one_line("short"), "end")
    lines = printed(table, "ascii", width=20)
    assert lines == ["a name that ...  end", "short            end"]


def test_sign_has_its_colour_when_something_stands_for_it():
    text = Text.assemble("a", ("→", "red"), "b")
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    Console(file=file, force_terminal=True, color_system="standard").print(layout.Written(text))
    file.flush()
    assert file.buffer.getvalue() == b"a\x1b[31m->\x1b[0mb\n"  # type: ignore[attr-defined]
