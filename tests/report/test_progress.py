from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from dynotune.report import loudness
from dynotune.report.progress import Progress
from dynotune.schema.comparison import Pair, Voided


def progress_on(*, terminal: bool) -> tuple[Progress, io.StringIO]:
    file = io.StringIO()
    return Progress(Console(file=file, width=100, force_terminal=terminal, highlight=False)), file


def plain(file: io.StringIO) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue())


def line_of(progress: Progress, width: int, *, encoding: str = "utf-8") -> str:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    Console(file=file, width=width, legacy_windows=False).print(progress)
    file.flush()
    return file.buffer.getvalue().decode(encoding)


def test_progress_writes_a_line_a_pair():
    progress, file = progress_on(terminal=False)
    with progress:
        progress.say("It will take about 2 minutes.")
        progress.running_arm("baseline", pair=1, max_pairs=12)
        progress.finished(Pair("baseline", 0.0035, 0.0025), number=1, max_pairs=12)
        progress.voided(Voided(2, "the machine swapped"))
        progress.warn("Only 2 cores.")
    assert file.getvalue().splitlines() == [
        "It will take about 2 minutes.",
        "pair  1/12  baseline 286 samples/s, candidate 400 samples/s  1.40×",
        "pair  2 void: the machine swapped",
        "warning: Only 2 cores.",
    ]


def test_a_log_is_told_once_a_minute_what_is_in_progress(monkeypatch):
    now_s = 100.0
    monkeypatch.setattr("dynotune.report.progress.monotonic", lambda: now_s)
    progress, file = progress_on(terminal=False)
    with progress:
        for took_s, what in ((1.0, "pair 1"), (61.0, "pair 2"), (90.0, "pair 3"), (130.0, "pair 4")):
            now_s = 100.0 + took_s
            progress.running(what)
    assert file.getvalue().splitlines() == ["pair 2 · 1:01", "pair 4 · 2:10"]


def test_on_a_terminal_the_line_in_progress_says_how_long_it_has_taken(monkeypatch):
    now_s = 100.0
    monkeypatch.setattr("dynotune.report.progress.monotonic", lambda: now_s)
    progress, file = progress_on(terminal=True)
    with progress:
        now_s = 172.0
        progress.running("the command, plain")
    assert "the command, plain · 1:12" in plain(file)


def test_progress_on_a_terminal_gives_the_cursor_back_after_an_error():
    progress, file = progress_on(terminal=True)
    with pytest.raises(RuntimeError), progress:
        progress.running_arm("candidate", pair=2, max_pairs=12)
        raise RuntimeError
    hidden, shown = "\x1b[?25l", "\x1b[?25h"
    assert file.getvalue().rfind(shown) > file.getvalue().rfind(hidden) >= 0


def test_progress_says_a_pair_in_the_unit_of_its_objective():
    progress, file = progress_on(terminal=False)
    with progress:
        progress.finished(Pair("baseline", 3 << 30, 2 << 30), number=1, max_pairs=4, objective="memory")
    assert file.getvalue() == "pair  1/4  baseline 3.00 GiB, candidate 2.00 GiB  1.50×\n"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_wraps_texts_at_words_on_a_terminal_and_keeps_one_line_in_a_log(is_terminal):
    file, text = io.StringIO(), "it is 5.59 times as fast " * 20
    with Progress(Console(file=file, width=77, force_terminal=is_terminal, no_color=True)) as progress:
        progress.say(text.strip())
    lines = [line for line in file.getvalue().splitlines() if "fast" in line]
    assert (len(lines) > 1) == is_terminal
    assert sum(line.count("5.59") for line in lines) == 20


def test_progress_redraws_no_line_when_reports_are_plain(monkeypatch):
    monkeypatch.setitem(loudness.said, "plain", True)
    console = Console(file=io.StringIO(), width=40, force_terminal=True)
    with Progress(console) as progress:
        progress.running("pair 1 of at most 12")
    assert console.file.getvalue() == ""


@pytest.mark.parametrize("width", [20, 40, 60, 80, 200])
def test_progress_is_one_line_that_leaves_room_for_ctrl_c_at_any_width(width):
    progress, _ = progress_on(terminal=True)
    progress.running("a very long text of what is in progress at the moment, " * 4, left_s=600.0)
    progress.clear()
    line = line_of(progress, width)
    assert line.count("\n") == 1
    assert len(line.rstrip()) <= width - 3
    assert ("0:00 of about 10:00" in line) == (width >= 40)


def test_progress_says_when_all_ends_and_draws_how_far_it_is(monkeypatch):
    now_s = 100.0
    monkeypatch.setattr("dynotune.report.progress.monotonic", lambda: now_s)
    progress, _ = progress_on(terminal=True)
    progress.running("pair 1", left_s=60.0)
    now_s = 130.0
    progress.running("pair 2")
    progress.clear()
    assert line_of(progress, 80) == "━━━━━━────── pair 2 · 0:30 of about 1:00\n"
    assert (progress.doing.what, progress.doing.spent_s, progress.doing.left_s) == ("pair 2", 30.0, 30.0)


@pytest.mark.parametrize("left_s", [None, float("inf"), 20.0])
def test_progress_names_no_end_when_none_is_known_or_it_is_over(monkeypatch, left_s):
    now_s = 100.0
    monkeypatch.setattr("dynotune.report.progress.monotonic", lambda: now_s)
    progress, _ = progress_on(terminal=True)
    progress.running("pair 1", left_s=left_s)
    now_s = 130.0
    progress.clear()
    line = line_of(progress, 80)
    assert line.endswith("pair 1 · 0:30\n")
    assert line.count("━") == 3


def test_the_line_of_a_status_uses_the_width_of_the_terminal():
    progress, file = progress_on(terminal=True)
    with progress:
        progress.running("a text " * 20, left_s=60.0)
    (line,) = [line for line in plain(file).splitlines() if "of about" in line]
    assert 90 <= len(line.rstrip()) <= 97
