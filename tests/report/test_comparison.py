from __future__ import annotations

import io

import pytest
from msgspec.structs import replace
from rich.console import Console

from dynotune.report.terminal import Progress, comparison_table
from dynotune.schema.comparison import ArmSummary, FailedArm, Pair, Voided
from dynotune.schema.facts import Unknown
from dynotune.schema.run import EnvironmentChange, Readback


def text_of(renderable, *, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(renderable)
    return console.file.getvalue()


def row(text: str, label: str) -> str:
    """The one line that begins with `label`, single-spaced."""
    (line,) = [line for line in text.splitlines() if line.startswith(label)]
    return " ".join(line.split())


def test_the_table_says_what_was_compared_and_what_was_found(comparison):
    text = text_of(comparison_table(comparison()))
    assert row(text, "command") == "command python train.py 'my photographs'"
    compared = "compared loader.num_workers=2 host.num_threads=1 against the command as it is"
    assert row(text, "compared") == compared
    assert row(text, "verdict") == "verdict 1.42× faster"
    assert row(text, "samples/s") == "samples/s 281 399 1.42×"
    assert row(text, "95% interval") == "95% interval 1.38× to 1.45×"
    assert row(text, "pairs") == "pairs 4 of at most 12"
    assert row(text, "time to first step") == "time to first step 1.91 s 2.04 s"
    assert "Each run timed 30 steps as a whole, after 12 steps of warm-up." in text


def test_of_an_arm_that_timed_more_steps_it_is_said(comparison):
    made = comparison()
    made = replace(made, candidate=replace(made.candidate, window_steps=240))
    said = " ".join(text_of(comparison_table(made)).split())
    told = "Each run timed 30 steps as a whole, of the far faster candidate up to 240, after 12 steps of warm-up."
    assert told in said


@pytest.mark.parametrize("width", [60, 80, 200])
def test_nothing_is_cut_off_at_any_width(comparison, width):
    text = text_of(comparison_table(comparison()), width=width)
    assert "…" not in text
    assert "loader.num_workers=2" in text.replace("\n", "")


def test_the_plain_text_carries_no_control_characters(comparison):
    assert "\x1b" not in text_of(comparison_table(comparison()))


def test_steps_are_named_where_samples_could_not_be_counted(comparison):
    arm = ArmSummary(s_per_step=0.05)
    text = text_of(comparison_table(comparison(unit="step", baseline=arm, candidate=arm)))
    assert row(text, "steps/s") == "steps/s 20 20 1.42×"


def test_an_arm_that_knows_nothing_is_shown_as_unknown(comparison):
    text = text_of(comparison_table(comparison(baseline=ArmSummary(), speedup=None, ci=None)))
    assert row(text, "samples/s") == "samples/s unknown 399 unknown"
    assert row(text, "time to first step") == "time to first step unknown 2.04 s"
    assert "device memory" not in text


def test_void_pairs_are_listed_with_their_reasons(comparison):
    voided = [Voided(3, "another process took 80% of the cores")]
    text = text_of(comparison_table(comparison(voided=voided)))
    assert row(text, "pairs") == "pairs 4 of at most 12, 1 void"
    assert "void: pair 3: another process took 80% of the cores" in text


def test_a_void_pair_shows_what_it_read_and_that_it_is_no_evidence(comparison):
    voided = [Voided(3, "the machine swapped", Pair("baseline", 0.003, 0.002))]
    text = text_of(comparison_table(comparison(voided=voided)))
    assert "void: pair 3: the machine swapped (1.50×, not evidence)" in text


def test_a_setting_without_a_witness_is_reported_as_unverified(comparison):
    readback = {
        "env.A": Readback("env.A", "1", Unknown("nothing reads it."), "", None),
        "env.B": Readback("env.B", "1", "1", "getenv", True),
    }
    text = text_of(comparison_table(comparison(readback=readback, warnings=["Only 2 cores."])))
    assert "warning: env.A=1 is unverified: nothing reads it." in text
    assert "warning: Only 2 cores." in text
    assert "env.B" not in text


def test_the_place_where_the_program_sets_a_variable_is_named(comparison):
    change = EnvironmentChange("CUBLAS_WORKSPACE_CONFIG", ":4096:8", "lib/model.py", 134, "__init__", kept=True)
    text = text_of(comparison_table(comparison(set_by=[change])))
    assert "env.CUBLAS_WORKSPACE_CONFIG=:4096:8 in lib/model.py:134, held back" in text


def test_the_arm_that_failed_is_the_answer_with_its_last_lines(comparison):
    failed = FailedArm("candidate", 1, ["Traceback:", "ValueError: [bold] is not a mode"])
    text = text_of(
        comparison_table(comparison(verdict=None, speedup=None, ci=None, pairs=[], num_pairs=0, failed=failed))
    )
    assert row(text, "verdict") == "verdict no verdict"
    assert "The command failed in the candidate (loader.num_workers=2 host.num_threads=1)" in text
    assert "with exit code 1." in text
    assert "│ ValueError: [bold] is not a mode" in text
    assert "samples/s" not in text


def test_an_arm_that_a_signal_ended_says_so(comparison):
    failed = FailedArm("baseline", -9)
    text = text_of(comparison_table(comparison(verdict=None, speedup=None, pairs=[], failed=failed)))
    assert "The command failed in the baseline (as it is), by signal 9." in text


def progress_on(*, terminal: bool) -> tuple[Progress, io.StringIO]:
    file = io.StringIO()
    return Progress(Console(file=file, width=100, force_terminal=terminal, highlight=False)), file


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
    monkeypatch.setattr("dynotune.report.terminal.monotonic", lambda: now_s)
    progress, file = progress_on(terminal=False)
    with progress:
        for took_s, what in ((1.0, "pair 1"), (61.0, "pair 2"), (90.0, "pair 3"), (130.0, "pair 4")):
            now_s = 100.0 + took_s
            progress.running(what)
    assert file.getvalue().splitlines() == ["pair 2 · 1:01", "pair 4 · 2:10"]


def test_on_a_terminal_the_line_in_progress_says_how_long_it_has_taken(monkeypatch):
    now_s = 100.0
    monkeypatch.setattr("dynotune.report.terminal.monotonic", lambda: now_s)
    progress, file = progress_on(terminal=True)
    with progress:
        now_s = 172.0
        progress.running("the command, plain")
    assert "the command, plain · 1:12" in file.getvalue()


def test_progress_on_a_terminal_gives_the_cursor_back_after_an_error():
    progress, file = progress_on(terminal=True)
    with pytest.raises(RuntimeError), progress:
        progress.running_arm("candidate", pair=2, max_pairs=12)
        raise RuntimeError
    hidden, shown = "\x1b[?25l", "\x1b[?25h"
    assert file.getvalue().rfind(shown) > file.getvalue().rfind(hidden) >= 0


@pytest.mark.parametrize(
    ("objective", "label", "shown", "column"),
    [
        ("latency-p99", "a step, 99th percentile", "1.5 ms 1 ms 1.42×", "speed-up"),
        ("time-to-first-step", "time to first step", "1.5 ms 1 ms 1.42×", "speed-up"),
        ("energy", "energy a sample", "1.5 mJ 1 mJ 1.42×", "ratio"),
    ],
)
def test_the_table_shows_what_was_compared_in_its_own_unit(comparison, objective, label, shown, column):
    arms = {"baseline": ArmSummary(value=0.0015), "candidate": ArmSummary(value=0.001)}
    text = text_of(comparison_table(comparison(objective=objective, **arms)))
    assert row(text, label) == f"{label} {shown}"
    assert column in text
    assert "samples/s" not in text


def test_progress_says_a_pair_in_the_unit_of_its_objective():
    progress, file = progress_on(terminal=False)
    with progress:
        progress.finished(Pair("baseline", 3 << 30, 2 << 30), number=1, max_pairs=4, objective="memory")
    assert file.getvalue() == "pair  1/4  baseline 3.00 GiB, candidate 2.00 GiB  1.50×\n"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_what_is_said_wraps_at_words_on_a_terminal_and_is_one_line_in_a_log(is_terminal):
    file, text = io.StringIO(), "it is 5.59 times as fast " * 20
    with Progress(Console(file=file, width=77, force_terminal=is_terminal, no_color=True)) as progress:
        progress.say(text.strip())
    lines = [line for line in file.getvalue().splitlines() if "fast" in line]
    assert (len(lines) > 1) == is_terminal
    assert sum(line.count("5.59") for line in lines) == 20
