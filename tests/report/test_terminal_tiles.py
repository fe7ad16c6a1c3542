"""Sparklines and bars of tiles in the terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from dynotune.report import as_text, loudness, shown
from dynotune.report.blocks import Answer, Report, Tile, Tiles
from dynotune.report.terminal import STYLES
from dynotune.report.terminal_tiles import DrawnTiles, bar, sparkline

TILES = [
    Tile("steps", "20/s", "50 ms each", [1.0, 2.0, 4.0, None, 4.0]),
    Tile("epoch", "3", "step 20 of about 50", share=0.4),
    Tile("memory", "3.00 GiB"),
]


def drawn(width: int, *, encoding: str = "utf-8") -> list[str]:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    Console(width=width, file=file, legacy_windows=False).print(DrawnTiles(TILES, STYLES))
    file.flush()
    return [line.rstrip() for line in file.buffer.getvalue().decode(encoding).splitlines()]


def test_sparkline_begins_at_zero_and_leaves_a_blank_where_nothing_is_known():
    assert sparkline([0.0, 5.0, 10.0, None], 4) == "▁▄▇ "
    assert sparkline([0.0, 5.0, 10.0, None], 4, ascii_only=True) == "_~* "
    assert sparkline([], 4) == ""
    assert sparkline([0.0, 0.0], 4) == "▁▁"
    assert sparkline([5.0, None], 4) == ""


def test_sparkline_takes_means_when_there_are_more_values_than_columns():
    assert sparkline([0.0, 2.0, 4.0, 6.0, 8.0, 10.0], 3) == sparkline([1.0, 5.0, 9.0], 3)
    assert len(sparkline([1.0] * 60, 16)) == 16


@pytest.mark.parametrize(("share", "num"), [(-1.0, 0), (0.0, 0), (0.5, 5), (1.0, 10), (7.0, 10)])
def test_bar_keeps_its_width_whatever_the_share(share, num):
    text = bar(share, 10, style="", ascii_only=True).plain
    assert text == "#" * num + "-" * (10 - num)


@pytest.mark.parametrize("width", [20, 40, 60, 80, 200])
def test_tiles_are_a_line_each_at_any_width(width):
    lines = drawn(width)
    assert [line.split()[0] for line in lines] == ["steps", "epoch", "memory"]
    assert max(map(len, lines)) <= width
    assert ("50 ms each" in lines[0]) == (width >= 60)


def test_tiles_stay_in_their_columns_when_the_terminal_has_ascii_alone():
    lines = drawn(80, encoding="ascii")
    assert lines[1].startswith("epoch   3         ######")
    assert lines[0].index("50 ms each") == lines[1].index("step 20 of about 50")


def test_tiles_are_sentences_of_names_and_values_in_plain_mode(monkeypatch):
    monkeypatch.setitem(loudness.said, "plain", True)
    report = Report(kicker="", answer=Answer(large="", line="Good."), head=[Tiles(TILES)])
    assert as_text(shown(report)).splitlines()[:3] == [
        "steps: 20/s, 50 ms each",
        "epoch: 3, step 20 of about 50",
        "memory: 3.00 GiB",
    ]
