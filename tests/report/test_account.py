"""What the whole time of a run went to, in the terminal and on pages."""

from __future__ import annotations

import io
import re

import msgspec
from rich.console import Console

from dynotune.report import on_terminal
from dynotune.report.blocks import Table
from dynotune.report.page import html as pages
from dynotune.schema.account import AccountDetail, AccountRow, RunAccount, SavedTime
from dynotune.schema.facts import Unknown

from .layouts import blocks_of
from .studies import diagnosis

ROWS = [
    AccountRow("start", "imports", 12.0, [AccountDetail("torch", 9.0), AccountDetail("numpy", 0.2)]),
    AccountRow("start", "first_step", 0.05),
    AccountRow("steps", "backward", 40.0, [AccountDetail("/home/me/train.py(31): train", 40.0)]),
    AccountRow("between", "validation", 30.0, [AccountDetail("train.py(50): validate", 30.0)]),
    AccountRow("end", "saving", 16.95),
    AccountRow("unexplained", "unexplained", 1.0),
]
ACCOUNT = RunAccount(
    id="run",
    command=["python", "train.py"],
    wall_s=100.0,
    exit_code=0,
    pid=7,
    num_processes=3,
    rows=ROWS,
    step="draw DataLoader, step SGD",
    num_steps=2000,
    num_epochs=4,
    per_thousand_steps_s=7200.0,
    per_epoch_s=20.0,
    energy_j=3.6e6,
    per_thousand_steps_j=2.592e8,
    per_epoch_j=7.2e5,
    saved=[SavedTime("optimizer.fused=true", 1.25, (1.2, 1.3), 1800.0, 4.0)],
)


def told(account: RunAccount, *, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(on_terminal(account))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_account_shows_parts_with_rows_and_their_largest_places():
    text = told(ACCOUNT)
    assert "imports" in text and "torch 9 s" in text and "numpy" not in text
    assert "train.py:50 validate" in text
    line = " ".join(text.split())
    assert "whole run 100 s 100%" in line
    assert "the wall clock of process 7, of 2 more not counted again" in line
    assert "steps 40%, between steps 30%, after the last step 17%. Unexplained: 1.0%." in line


def test_account_tells_hours_and_energy_and_what_proved_settings_save():
    line = " ".join(told(ACCOUNT).split())
    assert "1,000 steps 2 h, about 72 kWh" in line
    assert "an epoch 20 s, about 0.2 kWh" in line
    assert "energy 1 kWh of the GPUs, over the whole run" in line
    assert "optimizer.fused=true 1.25× 1.20× to 1.30× 30 min (0.5 h) 4 s" in line
    assert "Energy that they save: unknown: the recipe's proof is of time." in line


def test_account_tells_energy_that_settings_save_when_energy_was_proved():
    proved = SavedTime(
        "optimizer.fused=true",
        1.25,
        (1.2, 1.3),
        Unknown("the recipe's proof is of energy"),
        Unknown("the recipe's proof is of energy"),
        7.2e4,
    )
    line = " ".join(told(msgspec.structs.replace(ACCOUNT, saved=[proved])).split())
    assert "optimizer.fused=true 1.25× 1.20× to 1.30× 0.02 kWh" in line
    assert "in an epoch" not in line and "Energy that they save" not in line


def test_account_says_why_energy_is_unknown_when_there_is_no_gpu():
    line = " ".join(told(msgspec.structs.replace(ACCOUNT, energy_j=Unknown("no GPU is visible"))).split())
    assert "energy unknown: no GPU is visible" in line


def test_account_sums_small_rows_up_so_that_a_screen_holds_it():
    screen, whole = blocks_of(ACCOUNT, Table)[:2]
    names = [[str(row[0]) for row in table.rows] for table in (screen, whole)]
    assert "  first step" not in names[0] and "  smaller ones" in names[0]
    assert "  first step" in names[1] and "  smaller ones" not in names[1]


def test_account_shows_the_stack_that_was_seen_most_when_much_is_unexplained():
    frames = ["train.py(9): <module>", "core.py(2): work"]
    rows = [AccountRow("start", "imports", 60.0), AccountRow("unexplained", "unexplained", 40.0)]
    loud = msgspec.structs.replace(ACCOUNT, rows=rows, unexplained_stack=frames)
    assert "core.py(2): work" in told(loud)
    assert "core.py(2): work" not in told(msgspec.structs.replace(ACCOUNT, unexplained_stack=frames))


def test_account_says_so_when_no_step_was_found_and_when_nothing_was_recorded():
    rows = [AccountRow("start", "imports", 2.0), AccountRow("end", "process_end", 1.0)]
    without = RunAccount(command=["python"], wall_s=3.0, rows=rows, exit_code=-9)
    assert "No step was found. The run took 3 s: imports 2 s." in " ".join(told(without).split())
    assert "by signal 9" in told(without)
    assert "Nothing was recorded." in told(RunAccount(command=["python"], wall_s=0.0))


def test_account_has_a_page_and_markdown():
    assert "validation" in pages.markdown(ACCOUNT)
    assert "validation" in pages.page(ACCOUNT)


def test_diagnosis_shows_the_account_up_to_its_steps():
    before = msgspec.structs.replace(ACCOUNT, is_whole=False)
    text = told(msgspec.structs.replace(diagnosis(), account=before))
    assert "Before the timed steps" in text and "torch 9 s" in text and "up to then" in text
    assert "Before the timed steps" not in told(diagnosis())


def test_account_page_sets_rows_in_when_they_are_parts_of_the_row_above() -> None:
    made = pages.page(ACCOUNT)
    assert re.search(r'<td role="cell" class="text within"[^>]*>  imports', made)
    assert re.search(r'<span class="marked"><svg.*?</svg><span class="strong">start', made)


def test_account_gives_hours_only_when_a_time_is_a_tenth_of_one() -> None:
    text = told(ACCOUNT)
    assert "30 min (0.5 h)" in text
    assert re.search(r"an epoch +20 s, about 0.2 kWh *$", text, re.MULTILINE)
