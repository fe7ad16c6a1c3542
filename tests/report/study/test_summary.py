from __future__ import annotations

import io
import math
import re
from typing import Any

import msgspec
import pytest
from rich.cells import cell_len
from rich.console import Console

from dynotune.report import on_terminal, terminal
from dynotune.report.blocks import Interval
from dynotune.report.study.header import spent_s
from dynotune.report.terminal_forest import PICTURE, Scale
from dynotune.schema.diagnosis import Finding
from dynotune.schema.facts import Unknown
from dynotune.schema.setting import Setting
from dynotune.schema.study import Candidate, CandidateOutcome, Estimate, Parts, Study
from dynotune.schema.trace_summary import Place

from .. import studies
from ..page.test_html import hostile

EVERY = [
    studies.rich,
    studies.on_top,
    studies.empty,
    studies.unfinished,
    studies.only_failures,
    studies.one_candidate,
    studies.large,
]
# A terminal of a common size, somewhat enlarged; and the smallest that is common.
ONE_SCREEN, SMALL_SCREEN = 55, 24


@pytest.fixture
def brief(monkeypatch):
    """Shows what a terminal gets."""
    monkeypatch.setattr(terminal, "is_brief", lambda: True)


def text_of(study: Study, *, width: int = 100, **more: Any) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False, **more)
    console.print(on_terminal(study))
    return console.file.getvalue()


@pytest.mark.parametrize("made", EVERY)
@pytest.mark.parametrize("width", [80, 120])
def test_study_summary_fits_one_screen(made, width):
    lines = text_of(made(), width=width).splitlines()
    assert len(lines) <= ONE_SCREEN
    assert max(cell_len(line) for line in lines) <= width


IN_THE_CODE = Finding(
    id="sync-per-step",
    severity="high",
    claim="The program waits for the device in each step, to read a value.",
    share=0.2,
    where=Place("/home/me/train.py(44): main"),
    remedy="Read the loss every 50 steps only: keep a sum on the device in train.py:44.",
)


def with_a_finding_in_the_code(made: Any) -> Study:
    study = made()
    return msgspec.structs.replace(study, diagnosis=studies.diagnosis(findings=[IN_THE_CODE]))


@pytest.mark.parametrize(
    ("verdict", "shown"),
    [
        ("Nothing is proved: none was measured.", "verdict  Nothing is proved: none was measured."),
        ("Nothing helps: a=1 is slower.", "verdict  Nothing helps: a=1 is slower."),
        ("There was nothing to try.", "verdict  Nothing proved: There was nothing to try."),
        ("", "verdict  Nothing proved: No setting was proved to help."),
    ],
)
def test_verdict_says_once_that_nothing_is_proved(verdict: str, shown: str) -> None:
    study = msgspec.structs.replace(studies.one_candidate(), verdict=verdict)
    assert text_of(study).splitlines()[-1] == shown


@pytest.mark.parametrize("made", [studies.only_failures, studies.one_candidate])
def test_study_summary_shows_what_only_the_code_can_do_when_no_setting_is_proved(made: Any) -> None:
    text = text_of(with_a_finding_in_the_code(made))
    assert "In the code" in text and "up to 20% of a step" in text
    assert "Read the loss every 50 steps only" in text and "train.py:44" in text
    assert "In the code" not in text_of(made()), "a setting would mend its finding"
    assert "In the code" not in text_of(with_a_finding_in_the_code(studies.rich)), "the recipe is the answer"


@pytest.mark.parametrize("made", [*EVERY, lambda: with_a_finding_in_the_code(studies.only_failures)])
def test_study_summary_fits_a_small_screen_when_a_terminal_shows_it(brief, made):
    lines = text_of(made(), width=80).splitlines()
    assert len(lines) <= SMALL_SCREEN
    assert max(cell_len(line) for line in lines) <= 80


def test_a_terminal_shows_the_answer_last_and_nothing_twice(brief):
    text = text_of(studies.rich(), width=80)
    assert text.splitlines()[-1] == "verdict  2.31× faster (2.27× to 2.35× at 95%, on 8 fresh pairs)"
    for once in (
        "2.31×",
        "loader.num_workers=8",
        "host.num_threads=4",
        "precision.autocast=bf16",
        "dynotune ",
    ):
        assert text.count(once) == 1
    assert "dynotune run --recipe recipe.toml -- python train.py" in text
    assert "report.html has 2 warnings" in text
    assert "Three settings make it" not in text


def test_a_terminal_names_no_page_when_the_study_was_stopped(brief):
    assert "report.html" not in text_of(studies.unfinished(), width=80)


def test_a_terminal_shows_the_verdict_when_nothing_is_proved(brief):
    assert "Every setting that was tried made the command fail." in text_of(studies.only_failures(), width=80)


def test_study_shows_the_recipe_the_step_the_settings_what_to_type_and_then_the_answer():
    text = text_of(studies.rich())
    order = (
        "command",
        "Recipe",
        "A sample",
        "\nbefore",
        "\nafter",
        "\nSettings",
        "Three settings make it",
        "Run with",
        "\nverdict  2.31×",
    )
    places = [text.index(one) for one in order]
    assert places == sorted(places)


def test_the_bars_before_and_after_are_of_one_scale():
    before, after = (line for line in text_of(studies.rich()).splitlines() if re.match("before|after", line))
    longest, shorter = (len(re.split("[mµ]s", line, maxsplit=1)[1].strip()) for line in (before, after))
    assert shorter / longest == pytest.approx(1 / studies.WHOLE_SPEEDUP, abs=0.03)


def test_a_shorter_step_is_drawn_shorter_when_the_second_diagnosis_timed_a_longer_one():
    slow = msgspec.structs.replace(
        studies.after(), steps=studies.timing(3 * studies.BASELINE_S * studies.BATCH_SIZE)
    )
    text = text_of(studies.rich(diagnosis_with_recipe=slow))
    assert text == text_of(studies.rich())
    assert "A sample" in text


def test_one_bar_is_drawn_when_a_diagnosis_was_disturbed():
    disturbed = msgspec.structs.replace(studies.after(), disturbance="others used 47% of the cores")
    text = text_of(studies.rich(diagnosis_with_recipe=disturbed))
    lines = text.splitlines()
    assert [line.split()[0] for line in lines if re.match("before|after", line)] == ["before"]
    assert "A step" in lines
    assert "The step with the recipe is not shown: others used 47% of the cores" in text


@pytest.mark.parametrize("width", [60, 80])
def test_a_reason_is_whole_when_the_terminal_is_narrow(width):
    reason = (
        "It only matters together with loader.num_workers=1 or 2, which did not run in the time that "
        "was left."
    )
    candidates = [
        Candidate(setting=Setting("loader.prefetch_factor", value), effect="exact") for value in (4, 8)
    ]
    outcomes = {one.id: CandidateOutcome("not-tried", reason) for one in candidates}
    text = " ".join(text_of(studies.empty(candidates=candidates, outcomes=outcomes), width=width).split())
    assert f"not tried loader.prefetch_factor=4, loader.prefetch_factor=8 {reason}" in text


def test_study_tells_what_1000_steps_take_when_the_objective_is_time_or_energy():
    text = " ".join(text_of(studies.rich()).split())
    assert "; 1,000 steps 83.8 → 36.3 s" in text
    assert "savings in 1,000 steps" in text and "1.870× 1.853× to 1.887× saves 31.6 s" in text
    of_energy = msgspec.structs.replace(studies.rich().run, objective="energy")
    text = " ".join(text_of(msgspec.structs.replace(studies.rich(), run=of_energy, unit="J/sample")).split())
    assert "; 1,000 steps 0.0233 → 0.0101 Wh" in text


def test_study_does_not_tell_of_1000_steps_when_samples_of_a_step_are_unknown():
    without = msgspec.structs.replace(studies.timing(0.08), samples_per_s=None)
    study = studies.rich(diagnosis=studies.diagnosis(steps=without))
    assert "1,000 steps" not in text_of(study)


def test_settings_of_every_fate_are_shown_and_how_many_are_not():
    text = text_of(studies.rich())
    fates = (
        "proved",
        "not needed",
        "no effect",
        "slower",
        "unproved",
        "wrong results",
        "failed",
        "out of memory",
    )
    for fate in (*fates, "not tried"):
        assert re.search(rf"^{fate} ", text, flags=re.M)
    assert "3 more: report.html has all" in text


def test_a_wide_terminal_shows_a_picture_of_each_interval_and_a_narrow_one_none():
    wide = next(
        line for line in text_of(studies.rich(), width=120).splitlines() if "expandable_segments" in line
    )
    assert wide.rstrip().index("●") < wide.index("│")
    assert "●" not in text_of(studies.rich(), width=80)


def row(ratio: float, ci: tuple[float, float]) -> Interval:
    return Interval("proved", "a", ratio, ci)


@pytest.mark.parametrize("speedup", [0.001, 0.9, 1.0, 1.3, 900.0])
def test_a_picture_is_as_wide_as_it_should_be_whatever_the_ratio(speedup):
    one = row(speedup, (speedup / 2, speedup * 2))
    picture = Scale.of([one]).picture(one, "").plain
    assert len(picture) == PICTURE
    assert picture.count("●") == 1


@pytest.mark.parametrize("width", [80, 110])
def test_long_names_give_way_to_figures(width):
    setting = Setting("env.A_LONG_NAME_OF_A_VARIABLE_THAT_IS_SET", "a long value, " * 9)
    one = Estimate(arm=str(setting), against="", phase="prune", speedup=1.234, ci=(1.1, 1.4), num_blocks=6)
    text = text_of(
        studies.empty(candidates=[Candidate(setting=setting, effect="exact")], estimates=[one]), width=width
    )
    assert "1.23×" in text and "1.10× to 1.40×" in text


def test_a_picture_says_where_an_interval_goes_on():
    wide, other = row(1.0, (1e-9, 3e9)), row(1.0, (0.9, 1.1))
    scale = Scale.of([wide, other])
    assert scale.picture(wide, "").plain.startswith("‹") and scale.picture(wide, "").plain.endswith("›")
    assert not set("‹›") & set(scale.picture(other, "").plain)


def test_study_summary_has_no_bar_when_the_step_is_unknown():
    text = text_of(
        studies.rich(
            diagnosis=Unknown("the profiler could not start"), diagnosis_with_recipe=Unknown("not yet made")
        )
    )
    assert "A step" not in text
    assert "2.31×" in text


def test_unfinished_it_says_how_to_go_on():
    text = text_of(studies.unfinished())
    assert "Not finished" in text
    assert "dynotune tune --resume 20261122-101500-123-abcdef" in text


def test_without_a_recipe_none_is_to_be_run():
    text = text_of(studies.only_failures())
    assert "Nothing proved" in text
    assert "--recipe" not in text
    row = text[text.index("\nfailed ") : text.index("ValueError: it cannot be so")]
    assert all(one.id in row for one in studies.only_failures().candidates)
    assert text.count("ValueError: it cannot be so") == 1


def test_strange_names_do_no_harm_to_the_terminal():
    text = text_of(hostile(studies.rich()))
    assert not [character for character in text if not character.isprintable() and character != "\n"]


def test_a_terminal_without_unicode_is_given_letters_it_has():
    console = Console(file=io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="replace"), width=120)
    console.print(on_terminal(studies.rich()))
    assert console.file.buffer.getvalue().decode("ascii").count("#") > 30  # type: ignore[attr-defined]


def test_a_command_line_that_is_too_long_stays_one_for_a_shell():
    text = text_of(studies.rich(command=["python", *(f"--option-{at}" for at in range(30))]), width=80)
    after = text[text.index("Run with the recipe") :].splitlines()[1:]
    assert after[0].endswith("\\")


def parts() -> Parts:
    exact, whole = (studies.key(settings) for settings in (studies.WHOLE[1:2], studies.WHOLE))
    return Parts(
        exact=studies.estimate(exact, "", "switch", 1.92, 0.01, 6),
        rounding=studies.estimate(whole, exact, "switch", 1.20, 0.01, 6),
    )


@pytest.mark.parametrize("width", [80, 120])
def test_the_answer_has_two_lines_when_a_recipe_holds_settings_that_round_beside_others(width):
    lines = " ".join(text_of(studies.rich(parts=parts()), width=width).split())
    assert (
        "without rounding 1.920× (1.901× to 1.939×; 6 blocks within one process), by loader.num_workers=8"
        in lines
    )
    assert (
        "rounding adds 1.200× (1.188× to 1.212×; 6 blocks within one process), by host.num_threads=4" in lines
    )


def test_the_answer_says_so_when_settings_that_do_not_round_were_not_measured_by_themselves():
    study = studies.rich(parts=Unknown("there was no time"))
    assert "without rounding not known: there was no time" in " ".join(text_of(study).split())


def test_the_line_that_goes_on_comes_last_before_the_answer_when_more_time_may_prove_more():
    before, _, _ = text_of(studies.rich(wants_time=True, budget_s=180.0)).rpartition("verdict")
    assert before.rstrip().endswith("dynotune tune --resume 20261122-101500-123-abcdef --budget 15m")


def test_the_line_that_goes_on_names_the_time_that_should_settle_it_when_that_is_known():
    study = studies.rich(wants_time=True, budget_s=180.0, settles_in_s=100.0)
    before, _, _ = text_of(study).rpartition("verdict")
    assert "About 3 min more should settle it:" in before
    budget_s = 60 * math.ceil((spent_s(study) + 125) / 60)
    assert before.rstrip().endswith(f"--budget {budget_s // 60}m")
