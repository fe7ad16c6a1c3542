from __future__ import annotations

import io

import pytest
from msgspec.structs import replace
from rich.console import Console

from dynotune.report import on_terminal
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
    text = text_of(on_terminal(comparison()))
    assert row(text, "command") == "command python train.py 'my photographs'"
    compared = "compared loader.num_workers=2 host.num_threads=1 against the command as it is"
    assert row(text, "compared") == compared
    assert row(text, "verdict") == "verdict 1.42× faster (1.38× to 1.45× at 95%, on 4 fresh pairs)"
    assert text.splitlines()[-1].startswith("verdict ")
    assert row(text, "samples/s") == "samples/s 281 399 1.42× faster"
    assert row(text, "95% interval") == "95% interval 1.38× to 1.45×"
    assert row(text, "pairs") == "pairs 4 of at most 12"
    assert row(text, "time to first step") == "time to first step 1.91 s 2.04 s"
    assert "Each run timed 30 steps as a whole, after 12 steps of warm-up." in text


def test_of_an_arm_that_timed_more_steps_it_is_said(comparison):
    made = comparison()
    made = replace(made, candidate=replace(made.candidate, window_steps=240))
    said = " ".join(text_of(on_terminal(made)).split())
    told = (
        "Each run timed 30 steps as a whole (up to 240 for the far faster candidate), after 12 steps of "
        "warm-up."
    )
    assert told in said


@pytest.mark.parametrize("width", [60, 80, 200])
def test_nothing_is_cut_off_at_any_width(comparison, width):
    text = text_of(on_terminal(comparison()), width=width)
    assert "…" not in text
    assert "loader.num_workers=2" in text.replace("\n", "")


def test_the_plain_text_carries_no_control_characters(comparison):
    assert "\x1b" not in text_of(on_terminal(comparison()))


def test_steps_are_named_where_samples_could_not_be_counted(comparison):
    arms = {"baseline": ArmSummary(s_per_step=0.05), "candidate": ArmSummary(s_per_step=0.04)}
    text = text_of(on_terminal(comparison(unit="step", **arms)))
    assert row(text, "steps/s") == "steps/s 20 25 1.42× faster"


def test_comparison_shows_the_measured_medians_when_their_quotient_is_not_the_stated_ratio(comparison):
    arms = {"baseline": ArmSummary(samples_per_s=361.0), "candidate": ArmSummary(samples_per_s=1289.0)}
    text = text_of(on_terminal(comparison(speedup=3.6, ci=(2.56, 5.07), **arms)))
    assert row(text, "samples/s") == "samples/s 361 1,289 3.60× faster"
    arms = {"baseline": ArmSummary(value=4e9), "candidate": ArmSummary(value=3e9)}
    text = text_of(on_terminal(comparison(objective="memory", speedup=1.4, ci=(1.2, 1.5), **arms)))
    assert row(text, "peak of memory").startswith("peak of memory 3.73 GiB 2.79 GiB")


def test_an_arm_that_knows_nothing_is_shown_as_unknown(comparison):
    text = text_of(on_terminal(comparison(baseline=ArmSummary(), speedup=None, ci=None)))
    assert row(text, "samples/s") == "samples/s unknown 399 unknown"
    assert row(text, "time to first step") == "time to first step unknown 2.04 s"
    assert "device memory" not in text


def test_void_pairs_are_listed_with_their_reasons(comparison):
    voided = [Voided(3, "another process took 80% of the cores")]
    text = text_of(on_terminal(comparison(voided=voided)))
    assert row(text, "pairs") == "pairs 4 of at most 12, 1 void"
    assert "void: pair 3: another process took 80% of the cores" in text


def test_void_block_is_called_a_block_when_both_arms_ran_within_one_process(comparison):
    text = text_of(on_terminal(comparison(within=True, voided=[Voided(3, "the machine swapped")])))
    assert "void: block 3: the machine swapped" in text


def test_a_void_pair_shows_what_it_read_and_that_it_is_no_evidence(comparison):
    voided = [Voided(3, "the machine swapped", Pair("baseline", 0.003, 0.002))]
    text = text_of(on_terminal(comparison(voided=voided)))
    assert "void: pair 3: the machine swapped (1.50×, not evidence)" in text


def test_a_setting_without_a_witness_is_reported_as_unverified(comparison):
    readback = {
        "env.A": Readback("env.A", "1", Unknown("nothing reads it."), "", None),
        "env.B": Readback("env.B", "1", "1", "getenv", True),
    }
    text = text_of(on_terminal(comparison(readback=readback, warnings=["Only 2 cores."])))
    assert "warning: env.A=1 is unverified: nothing reads it." in text
    assert "warning: Only 2 cores." in text
    assert "env.B" not in text


def test_the_place_where_the_program_sets_a_variable_is_named(comparison):
    change = EnvironmentChange(
        "CUBLAS_WORKSPACE_CONFIG", ":4096:8", "lib/model.py", 134, "__init__", kept=True
    )
    text = text_of(on_terminal(comparison(set_by=[change])))
    assert "env.CUBLAS_WORKSPACE_CONFIG=:4096:8 in lib/model.py:134, which dynotune" in text


def test_the_arm_that_failed_is_the_answer_with_its_last_lines(comparison):
    failed = FailedArm("candidate", 1, ["Traceback:", "ValueError: [bold] is not a mode"])
    text = text_of(
        on_terminal(comparison(verdict=None, speedup=None, ci=None, pairs=[], num_pairs=0, failed=failed))
    )
    failure = "no verdict: the command failed in the candidate, with exit code 1"
    assert row(text, "verdict") == f"verdict {failure}"
    assert "It failed in the candidate (loader.num_workers=2 host.num_threads=1)" in text
    assert "with exit code 1." in text
    assert "│ ValueError: [bold] is not a mode" in text
    assert "samples/s" not in text


def test_an_arm_that_a_signal_ended_says_so(comparison):
    failed = FailedArm("baseline", -9)
    text = text_of(on_terminal(comparison(verdict=None, speedup=None, pairs=[], failed=failed)))
    assert "It failed in the baseline (as it is), by signal 9." in text


@pytest.mark.parametrize(
    ("objective", "label", "shown"),
    [
        ("latency-p99", "a step, 99th percentile", "1.5 ms 1 ms 1.42× faster at the 99th percentile"),
        ("time-to-first-step", "time to first step", "1.5 ms 1 ms 1.42× faster to its first step"),
        ("energy", "energy a sample", "1.5 mJ 1 mJ uses 29% less energy"),
    ],
)
def test_the_table_shows_what_was_compared_in_its_own_unit(comparison, objective, label, shown):
    arms = {"baseline": ArmSummary(value=0.0015), "candidate": ArmSummary(value=0.001)}
    text = text_of(on_terminal(comparison(objective=objective, **arms)))
    assert row(text, label) == f"{label} {shown}"
    assert "samples/s" not in text
