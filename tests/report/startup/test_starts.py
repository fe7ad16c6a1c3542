"""Timed starts in the terminal."""

from __future__ import annotations

import io

import pytest
from msgspec.structs import replace
from rich.console import Console

from dynotune.report import on_terminal
from dynotune.report.page.html import markdown
from dynotune.report.startup.starts import StartProgress
from dynotune.schema.facts import Unknown
from dynotune.schema.startup import PHASES, Ratio, StartBlock, VoidBlock

from ...fakes import changed
from ..timed_starts import BLOCK, FOUND, OWN


def shown(startup, width=100):
    console = Console(file=io.StringIO(), width=width)
    console.print(on_terminal(startup))
    return console.file.getvalue()


def test_the_answer_its_interval_and_what_follows_are_shown():
    text = shown(FOUND)
    assert "cold over warm" in text
    assert "4.00× (3.90× to 4.10×) warm is faster, 4 blocks" in text
    assert "The budget is used up." in text
    assert "A warm cache saves 15 s" in text
    assert "TORCHINDUCTOR_CACHE_DIR=/path" in text


def test_answer_of_starts_names_no_phase_when_only_the_rest_took_time():
    blocks = [StartBlock([replace(start, phases={"other": start.value_s}) for start in BLOCK.starts])]
    assert "A start takes 5 s with warm caches. A cold" in shown(replace(FOUND, blocks=blocks))


def test_ratio_of_starts_stands_alone_when_it_has_no_interval():
    text = " ".join(shown(FOUND).split())
    assert "off over warm 1.20× undecided, 4 blocks" in text and "(unknown)" not in text


def test_markdown_of_starts_lists_the_phases_below_the_state_of_the_caches():
    _, _, below = markdown(FOUND).partition("With caches warm:\n\n")
    assert below.startswith("- torch import: 1.50 s\n- the rest: 5.00 s\n")


def test_starts_report_has_no_ratio_and_no_interval_when_nothing_was_measured():
    void = Ratio(arm="cold", verdict="undecided", num_blocks=0, reason="2 of 2 blocks were void.")
    text = " ".join(shown(replace(FOUND, ratios=[void])).split())
    assert "cold over warm undecided, 0 blocks 2 of 2 blocks were void." in text


def test_a_row_is_shown_for_each_phase_that_took_time_in_any_arm():
    rows = {line.strip().partition("  ")[0]: line.split() for line in shown(FOUND).splitlines()}
    assert rows["to the first step"][-6:] == ["20", "s", "5", "s", "21", "s"]
    assert rows["compile"][-4:] == ["14", "s", "–", "–"]
    assert "CUDA start" not in rows


def test_starts_report_names_unknown_phases_with_their_reason_and_gives_them_no_row():
    blocks = [
        StartBlock([replace(s, phases=s.phases | {"model_build": Unknown("too old")}) for s in BLOCK.starts])
    ]
    text = shown(replace(FOUND, blocks=blocks))
    assert "not known: model build: too old" in text
    nothing = dict.fromkeys(PHASES, Unknown("nobody recorded them"))
    text = shown(replace(FOUND, blocks=[StartBlock([replace(s, phases=nothing) for s in BLOCK.starts])]))
    assert "not known: the phases: nobody recorded them" in text


def test_caches_that_nothing_used_or_holds_are_left_out():
    text = shown(FOUND)
    (row,) = [line for line in text.splitlines() if line.startswith("inductor")]
    assert row.split() == ["inductor", "5", "MiB", "–", "5", "MiB", "7", "MiB", "no"]
    assert "ComputeCache" not in text


@pytest.mark.parametrize(
    ("changes", "last"),
    [
        ({"off": "it is disabled"}, "off"),
        ({"writable": False}, "not writable"),
        ({"lasts": Unknown("it lies in /tmp")}, "unknown"),
        ({"lasts": True}, "yes"),
    ],
)
def test_starts_report_says_whether_the_commands_own_cache_lasts(changes, last):
    text = shown(replace(FOUND, own=[replace(OWN, **changes)]))
    (row,) = [line for line in text.splitlines() if line.startswith("inductor")]
    assert row.rstrip().endswith(last)


def test_void_blocks_are_told_and_shown_where_there_are_no_others():
    voided = VoidBlock(1, "other processes used 98% of the cores", BLOCK)
    text = shown(replace(FOUND, blocks=[], voided=[voided]))
    assert "void: block 1: other processes used 98%" in text
    assert "20 s" in text


def test_a_report_of_hostile_names_harms_no_terminal():
    text = shown(changed(FOUND, command=["a\x1b[31mb"], warnings=["\x1b]0;x\x07"]))
    assert "\x1b]" not in text
    assert "\x07" not in text


def test_progress_tells_each_block():
    console = Console(file=io.StringIO(), width=100)
    with StartProgress(console) as progress:
        progress.running("block 1")
        progress.started(BLOCK, number=1, max_blocks=12)
        progress.voided_block(VoidBlock(2, "a reason", BLOCK))
    text = console.file.getvalue()
    assert "block  1/12  cold 20 s, warm 5 s, off 21 s" in text
    assert "block  2 void: a reason" in text
