"""The writer for the terminal: the verdict last, in any width, without UTF-8, and for a screen reader."""

from __future__ import annotations

import io
import re
import shlex
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from dynotune.cli import signs
from dynotune.report import loudness, on_terminal, plain_console, shown, terminal
from dynotune.report.blocks import Answer, CommandLine, Commands, Report
from dynotune.text import words

from . import answers, studies
from .accounts import ACCOUNT
from .summaries import difference, summary
from .timed_starts import FOUND

DOCUMENTS = {
    "comparison": answers.comparison,
    "failed": answers.failed,
    "undecided": answers.undecided,
    "study": studies.rich,
    "unfinished": studies.unfinished,
    "nothing": studies.only_failures,
    "diagnosis": lambda: answers.diagnosis(upper_bounds=[], forecasts=[]),
    "trace": summary,
    "difference": difference,
    "memory": lambda: ACCOUNT,
    "startup": lambda: FOUND,
}
SCREEN = (80, 24)


def text_of(document: Any, *, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(on_terminal(document))
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.fixture(params=DOCUMENTS)
def document(request) -> Any:
    return DOCUMENTS[request.param]()


@pytest.mark.parametrize("is_brief", [False, True])
@pytest.mark.parametrize("width", [40, 80])
def test_verdict_is_the_end_and_no_line_is_too_wide(document, width, is_brief, monkeypatch):
    monkeypatch.setattr(terminal, "is_brief", lambda: is_brief)
    lines = text_of(document, width=width).splitlines()
    assert max(map(cell_len, lines)) <= width
    last = max(at for at, line in enumerate(lines) if line.startswith("verdict"))
    assert all(not line or line.startswith(" ") for line in lines[last + 1 :])


@pytest.mark.parametrize("width", [40, 80])
def test_pasted_command_is_whole_when_a_word_is_longer_than_a_line(width):
    typed = ["dynotune", "compare", f"env.LD_PRELOAD=/opt/{'long/' * 20}lib.so", "--", "python", "train.py"]
    command = Commands([CommandLine("Prove it", words.shell(typed))])
    console = plain_console.console()
    console.width = width
    with console.capture() as captured:
        console.print(shown(Report(kicker="", answer=Answer(large="", line="so"), sections=[command])))
    _, _, below = captured.get().partition("Prove it:\n")
    assert shlex.split(below.partition("\n\n")[0].replace("\\\n", "")) == typed


@pytest.mark.parametrize("name", [name for name in DOCUMENTS if name not in ("trace", "difference")])
def test_screen_of_80_by_24_holds_an_answer(name, monkeypatch):
    monkeypatch.setattr(terminal, "is_brief", lambda: True)
    width, height = SCREEN
    assert len(text_of(DOCUMENTS[name](), width=width).splitlines()) <= height


def test_terminal_without_utf_8_is_given_signs_it_has(document):
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    signs.let_pass(file)
    Console(file=file, width=80).print(on_terminal(document))
    file.flush()
    shown = file.buffer.getvalue().decode("ascii")  # type: ignore[attr-defined]
    assert "verdict" in shown and "?" not in shown and not re.search(r"\\[xuU]", shown)


def test_plain_report_draws_nothing_and_names_each_value(document, monkeypatch):
    monkeypatch.setitem(loudness.said, "plain", True)
    shown = text_of(document)
    assert not set("█▓▒░▚▌▂│─●") - {"│"} & set(shown)
    assert shown.splitlines()[-1].startswith("verdict: ") or "verdict: " in shown


def test_plain_report_says_the_parts_of_a_step_in_words(monkeypatch):
    monkeypatch.setitem(loudness.said, "plain", True)
    assert "waits for input: 61% 14.0 ms" in text_of(answers.diagnosis())
    assert "proved, loader.num_workers=8, 1.908×, 1.887× to 1.929×" in text_of(studies.rich())
