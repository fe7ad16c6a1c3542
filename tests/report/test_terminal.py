"""The writer for the terminal: the verdict last, in any width, without UTF-8, and for a screen reader."""

from __future__ import annotations

import io
import re
import shlex
from typing import Any

import msgspec
import pytest
from rich.cells import cell_len
from rich.console import Console

from dynotune.cli import signs
from dynotune.report import loudness, on_terminal, plain_console, shown, terminal
from dynotune.report.blocks import (
    Answer,
    Bars,
    Column,
    CommandLine,
    Commands,
    Fields,
    On,
    Piece,
    Report,
    Table,
)
from dynotune.schema.attribution import Predicted
from dynotune.schema.comparison import Voided
from dynotune.schema.diagnosis import Finding
from dynotune.schema.run import EnvironmentChange
from dynotune.schema.setting import Setting
from dynotune.schema.study import CandidateOutcome
from dynotune.schema.trace_summary import Place
from dynotune.text import words

from . import answers, studies
from .accounts import ACCOUNT
from .layouts import blocks_of
from .summaries import difference, summary
from .timed_starts import FOUND

MANY = [
    Finding(
        id=f"finding-{at}",
        severity="high",
        kind="jitter" if at == 3 else "speed",
        claim="The program waits for the device in each step, to read a value that it does not use.",
        share=0.2,
        where=Place("/home/me/train.py(44): main"),
        remedy="Read the loss every 50 steps only: keep a sum on the device." + " Read it last." * (at != 1),
        candidates=[Setting("loader.num_workers", at)] if at == 1 else [],
        predicted={f"loader.num_workers={num}": Predicted(0.3, 0.5) for num in range(6 * (at == 1))},
    )
    for at in range(5)
]
LONG: dict[str, Any] = {
    "candidate_settings": [Setting("python", f"/home/me/{'environments/' * 5}bin/python")],
    "voided": [Voided(at, "another program used 31% of the GPU") for at in range(8)],
    "warnings": [f"Beside {at} of 24 runs something else went on." for at in range(8)],
    "set_by": [EnvironmentChange(f"OMP_{at}", "1", "train.py", 12, "main", kept=True) for at in range(5)],
    "readback": {},
}
REASON = "It could not be tried in the time, and a long sentence says why this is so. " * 5
DOCUMENTS = {
    "comparison": answers.comparison,
    "failed": answers.failed,
    "undecided": answers.undecided,
    "study": studies.rich,
    "unfinished": studies.unfinished,
    "nothing": studies.only_failures,
    "diagnosis": answers.diagnosis,
    "long diagnosis": lambda: answers.diagnosis(
        findings=MANY, notes=["It is noted."] * 3, upper_bounds=[], forecasts=[]
    ),
    "long comparison": lambda: answers.comparison(**LONG),
    "long study": lambda: msgspec.structs.replace(
        studies.only_failures(),
        outcomes={
            one.id: CandidateOutcome("not-tried", f"{at}: {REASON}")
            for at, one in enumerate(studies.only_failures().candidates)
        },
        diagnosis=answers.diagnosis(findings=MANY[:1]),
    ),
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


def test_screen_has_fewer_findings_and_commands_where_all_would_scroll_the_top_away(monkeypatch):
    monkeypatch.setattr(terminal, "is_brief", lambda: True)
    finding = msgspec.structs.replace(MANY[1], claim="The program waits. " * 8)
    found = answers.diagnosis(findings=[finding, *MANY[2:]], upper_bounds=[], forecasts=[])
    console = Console(file=io.StringIO(), width=80, height=24, highlight=False)
    console.print(on_terminal(found))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert len(shown.splitlines()) <= 24
    assert "and 2 more" in shown
    assert "dynotune tune -- " in shown and "dynotune compare" not in shown


def test_screen_of_a_diagnosis_has_one_sentence_on_bounds_and_on_forecasts(monkeypatch):
    assert "the loader alone" in text_of(answers.diagnosis())
    monkeypatch.setattr(terminal, "is_brief", lambda: True)
    shown = " ".join(text_of(answers.diagnosis()).split())
    assert "No change of the loader can gain more than 61% of a step." in shown
    assert "Predicted with 4 workers: a step takes 10 ms" in shown
    assert "the loader alone" not in shown and "at least" not in shown


def test_screen_of_a_comparison_counts_the_notes_that_it_leaves_out(monkeypatch):
    monkeypatch.setattr(terminal, "is_brief", lambda: True)
    shown = text_of(answers.comparison(**LONG))
    assert "6 more warnings: --verbose shows all" in shown and "6 more void" in shown


def test_terminal_without_utf_8_is_given_signs_it_has(document):
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    signs.let_pass(file)
    Console(file=file, width=80).print(on_terminal(document))
    file.flush()
    shown = file.buffer.getvalue().decode("ascii")  # type: ignore[attr-defined]
    assert "verdict" in shown and "?" not in shown and not re.search(r"\\[xuU]", shown)
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize("is_plain", [False, True])
def test_no_line_ends_with_blanks(document, is_plain, monkeypatch):
    monkeypatch.setitem(loudness.said, "plain", is_plain)
    shown = plain_console.as_text(on_terminal(document), width=80)
    assert [line for line in shown.splitlines() if line.endswith(" ")] == []


def test_plain_report_draws_nothing_and_names_each_value(document, monkeypatch):
    monkeypatch.setitem(loudness.said, "plain", True)
    shown = text_of(document)
    assert not set("█▓▒░▚▌▂│─●") - {"│"} & set(shown)
    assert shown.splitlines()[-1].startswith("verdict: ") or "verdict: " in shown


def test_plain_report_says_the_parts_of_a_step_in_words(monkeypatch):
    monkeypatch.setitem(loudness.said, "plain", True)
    assert "waits for input: 61% 14.0 ms" in text_of(answers.diagnosis())
    assert "proved, loader.num_workers=8, 1.908×, 1.887× to 1.929×" in text_of(studies.rich())


TABLE = Table(
    "",
    [Column("cache"), Column("cold adds", "number"), Column("your own", "number"), Column("lasts", "whole")],
    [["inductor", "5.00 MiB", "17.9 MiB", "unknown"], ["cuda", "–", "580 MiB", "yes"]],
)


def drawn(*blocks: Piece, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(
        shown(Report(kicker="", answer=Answer(large="", line="It is so."), sections=blocks), On.LONG)
    )
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def test_a_table_names_each_value_when_its_columns_have_no_room_beside_each_other() -> None:
    assert drawn(TABLE, width=80)[0].split() == ["cache", "cold", "adds", "your", "own", "lasts"]
    assert drawn(TABLE, width=32)[:8] == [
        "inductor",
        "  cold adds  5.00 MiB",
        "  your own   17.9 MiB",
        "  lasts      unknown",
        "cuda",
        "  your own  580 MiB",
        "  lasts     yes",
        "",
    ]


def test_names_stand_above_their_texts_when_they_would_take_most_of_a_line() -> None:
    fields = Fields([("energy of the run", "1 kWh"), ("run", "100 s")])
    assert drawn(fields, width=80)[:2] == ["energy of the run  1 kWh", "run                100 s"]
    assert drawn(fields, width=32)[:4] == ["energy of the run", "  1 kWh", "run", "  100 s"]


def test_the_legend_of_a_bar_breaks_a_name_and_no_figure_when_a_line_is_short() -> None:
    lines = drawn(*blocks_of(answers.diagnosis(), Bars), width=30)
    assert not any("…" in line for line in lines)
    assert any(line.endswith("61%  14.0 ms") for line in lines)
