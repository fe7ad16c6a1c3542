from __future__ import annotations

import math
import shlex
import subprocess
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynotune.report.steps import stacked
from dynotune.report.study.commands import compares, repeats
from dynotune.report.study.header import pays_off
from dynotune.report.study.rows import Tried, ablated, joints, level, long_time, saved, tried
from dynotune.report.study.sides import before_and_after, breakdowns, levels
from dynotune.schema.arm import arm_key
from dynotune.schema.diagnosis import Diagnosis
from dynotune.schema.facts import Unknown
from dynotune.schema.setting import Setting
from dynotune.schema.study import BreakEven, Candidate, Estimate
from dynotune.schema.timing import Timing
from dynotune.text import words

from .. import studies

WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)
VALUES = st.text("ab =.", min_size=1, max_size=6)
RATIOS = st.floats(1e-6, 1e6)


def estimate(arm: str, speedup: float, *, half: float | None = 0.01, **changes: Any) -> Estimate:
    ci = None if half is None else (speedup * math.exp(-half), speedup * math.exp(half))
    fields: dict[str, Any] = {
        "arm": arm,
        "against": "",
        "phase": "prune",
        "speedup": speedup,
        "ci": ci,
        "num_blocks": 6,
    }
    return Estimate(**(fields | changes))


def of(*estimates: Estimate, names: str = "ab", bound: float = 0.5):
    candidates = [
        Candidate(setting=Setting(f"knob.{name}", 1), effect="exact", bound=bound) for name in names
    ]
    return studies.empty(candidates=candidates, estimates=list(estimates))


def test_setting_has_the_figure_of_the_answer_when_it_is_the_whole_recipe():
    study = of(estimate("knob.a=1", 1.1), names="a")
    answer = studies.rich().confirmed
    assert answer is not None
    alone = msgspec.structs.replace(
        answer, candidate_settings=[Setting("knob.a", 1)], verdict="faster", speedup=1.065, ci=(1.003, 1.131)
    )
    (row,) = tried(msgspec.structs.replace(study, confirmed=alone))
    assert row.alone is not None
    assert (row.alone.speedup, row.alone.ci, row.alone.phase) == (1.065, (1.003, 1.131), "confirm")
    undecided = msgspec.structs.replace(alone, verdict="undecided")
    (row,) = tried(msgspec.structs.replace(study, confirmed=undecided))
    assert row.alone is not None and row.alone.speedup == 1.1
    both = msgspec.structs.replace(alone, candidate_settings=[Setting("knob.a", 1), Setting("knob.b", 1)])
    (row,) = tried(msgspec.structs.replace(study, confirmed=both))
    assert row.alone is not None and row.alone.speedup == 1.1


def test_settings_are_told_by_fate_and_the_best_first():
    kinds = [row.kind for row in tried(studies.rich())]
    assert kinds[:4] == ["proved", "proved", "proved", "not-needed"]
    assert kinds[-1] == "not-tried"
    speedups = [row.alone.speedup for row in tried(studies.rich()) if row.kind == "not-needed" and row.alone]
    assert speedups == sorted(speedups, reverse=True)


def test_runs_in_fresh_processes_are_shown_before_turns_within_one():
    study = of(estimate("knob.a=1", 1.3), estimate("knob.a=1", 1.1, phase="switch"))
    assert tried(study)[0].alone == estimate("knob.a=1", 1.3)


def test_of_two_estimates_of_a_phase_the_later_is_shown():
    study = of(estimate("knob.a=1", 1.3), estimate("knob.a=1", 1.2))
    assert tried(study)[0].alone == estimate("knob.a=1", 1.2)


@pytest.mark.parametrize("speedup", [math.nan, math.inf, 0.0, -1.0])
def test_a_ratio_that_is_none_is_no_estimate(speedup):
    assert tried(of(estimate("knob.a=1", speedup, half=None)))[0].shown is None


def test_ablated_row_compares_the_whole_with_itself_without_the_setting():
    whole = estimate("knob.a=1 knob.b=1", 1.2, against="knob.b=1", phase="prune")
    (row,) = ablated(of(whole))
    assert (row.candidate.id, row.worth) == ("knob.a=1", whole)


@given(
    st.lists(
        st.tuples(st.sampled_from("abcdef"), VALUES), min_size=2, max_size=5, unique_by=lambda pair: pair[0]
    )
)
def test_joint_of_settings_names_them_when_their_values_hold_spaces(pairs):
    parts = [Setting(f"knob.{name}", value) for name, value in pairs]
    candidates = [Candidate(setting=part, effect="exact") for part in parts]
    together = estimate(arm_key(parts), 1.2)
    (joint,) = joints(studies.empty(candidates=candidates, estimates=[together]))
    assert joint.ids == sorted(map(str, parts))


def test_joint_is_left_out_when_a_setting_is_no_candidate():
    assert joints(of(estimate("knob.a=1 knob.z=1", 1.2))) == []


@pytest.mark.parametrize(
    ("together", "word"),
    [(1.32, "as its parts"), (1.45, "more than its parts"), (1.15, "less than its parts")],
)
def test_an_arm_is_held_against_the_product_of_its_parts(together, word):
    parts = estimate("knob.a=1", 1.1), estimate("knob.b=1", 1.2)
    (row,) = joints(of(*parts, estimate("knob.a=1 knob.b=1", together, phase="prune")))
    assert row.ids == ["knob.a=1", "knob.b=1"]
    assert row.parts == pytest.approx(1.32)
    assert row.word == word


def test_rows_have_no_product_when_a_part_was_not_measured():
    (row,) = joints(of(estimate("knob.a=1", 1.1), estimate("knob.a=1 knob.b=1", 1.3, phase="prune")))
    assert row.parts is None
    assert "not measured" in row.word


def test_a_gain_beyond_its_bound_is_said_to_be_so():
    (row,) = saved(of(estimate("knob.a=1", 2.0), names="a", bound=0.3))
    assert row.speedup == pytest.approx(2.0)
    assert row.word == "more than the bound"
    (row,) = saved(of(estimate("knob.a=1", 1.4, half=0.5), names="a", bound=0.28))
    assert row.word == "within the bound"


def test_levels_are_those_of_the_confirmation():
    study = studies.rich()
    sides = levels(study)
    assert sides is not None and study.confirmed is not None
    assert sides[0] / sides[1] == pytest.approx(study.confirmed.speedup)
    assert sides[0] == pytest.approx(studies.BASELINE_S, rel=0.03)
    assert levels(studies.one_candidate()) is None


def test_levels_are_unknown_when_nothing_is_confirmed():
    assert levels(studies.rich(confirmed=None)) is None
    assert levels(studies.rich(recipe=[])) is None
    assert levels(studies.rich(confirmed=msgspec.structs.replace(studies.rich().confirmed, pairs=[]))) is None


def test_bars_have_the_proved_lengths_when_the_second_diagnosis_says_otherwise():
    slow = msgspec.structs.replace(
        studies.after(), steps=studies.timing(3 * studies.BASELINE_S * studies.BATCH_SIZE)
    )
    study = studies.rich(diagnosis_with_recipe=slow)
    before, after = breakdowns(study)
    assert before.whole_s is not None and after.whole_s is not None and study.confirmed is not None
    assert before.whole_s / after.whole_s == pytest.approx(study.confirmed.speedup)
    assert (before.of_what, after.of_what) == ("sample", "sample")


DISTURBED = "others used 47% of the cores"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"diagnosis_with_recipe": msgspec.structs.replace(studies.after(), disturbance=DISTURBED)},
            DISTURBED,
        ),
        ({"diagnosis": studies.diagnosis(disturbance=DISTURBED)}, DISTURBED),
        ({"diagnosis_with_recipe": Unknown("not yet made")}, "not yet made"),
        ({"objective": "memory"}, "the proof timed no steps"),
        ({"confirmed": None}, "the proof timed no steps"),
    ],
)
def test_the_step_as_written_stands_alone_when_both_sides_cannot_be_compared(changes, reason):
    study = studies.rich(**changes)
    compared = before_and_after(study)
    assert isinstance(compared, Unknown) and reason in compared.reason
    (alone,) = breakdowns(study)
    assert isinstance(study.diagnosis, Diagnosis) and isinstance(study.diagnosis.steps, Timing)
    assert (alone.name, alone.whole_s, alone.of_what) == ("before", study.diagnosis.steps.step_s, "step")


@pytest.mark.parametrize(
    ("objective", "unit", "value", "text"),
    [
        ("throughput", "s/sample", 0.001, "1,000 samples/s"),
        ("throughput", "s/step", 0.5, "2 steps/s"),
        ("memory", "bytes", 3 * 2**30, "3.00 GiB"),
        ("latency-p99", "s", 0.0123, "12.3 ms"),
        ("energy", "J/sample", 1.25, "1.25 J/sample"),
    ],
)
def test_a_level_is_said_in_the_terms_of_its_objective(objective, unit, value, text):
    assert level(studies.empty(objective=objective, unit=unit), value) == text


def test_a_unit_that_both_sides_have_is_said_once():
    assert words.arrow("763 samples/s", "1,760 samples/s") == "763 → 1,760 samples/s"
    assert words.arrow("84.0 ms", "950 µs") == "84.0 ms → 950 µs"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (85.4, "85 s"),
        (150, "2.5 min"),
        (300, "5 min"),
        (590, "9.8 min"),
        (599, "10 min"),
        (840, "14 min"),
        (7500, "2 h 5 min"),
    ],
)
def test_long_times_are_said_in_minutes_and_hours(seconds, text):
    assert long_time(seconds) == text


@pytest.mark.parametrize(
    ("start_s", "after_steps", "text"),
    [
        (19.8, 154, "after 154 steps (7.2 s later)"),
        (19.8, None, "never: it starts 7.2 s later"),
        (12.0, 0, "at once"),
    ],
)
def test_rows_say_when_a_later_start_is_paid_for(start_s, after_steps, text):
    paid = BreakEven(start_s=start_s, baseline_start_s=12.6, after_steps=after_steps)
    assert pays_off(studies.empty(break_even=paid)).startswith(text)


def test_the_command_of_the_study_is_the_one_that_was_asked():
    study = studies.rich(
        objective="memory",
        seed=3,
        margin=0.02,
        timeout_s=90.5,
        caches="cold",
        sandbox=False,
        nice=5,
        offline_trackers=True,
        step_function="a:b",
    )
    line = next(" ".join(one.words) for one in repeats(study) if one.what == "Tune again")
    assert shlex.split(line) == [
        *["dynotune", "tune", "--budget", "90m", "--objective", "memory"],
        *["--try", "env.CUDA_MODULE_LOADING=EAGER", "--exclude", "alloc.max_split_size_mb"],
        *[
            "--values",
            "loader.num_workers=2,4,8,16",
            "--warmup",
            "24",
            "--steps",
            "120",
            "--step-function",
            "a:b",
        ],
        *["--margin", "0.02", "--timeout", "90.5s", "--seed", "3", "--caches", "cold", "--nice", "5"],
        *["--no-sandbox", "--offline-trackers"],
        *["--", *studies.COMMAND],
    ]


def test_a_variable_that_the_user_typed_is_typed_again_with_the_recipe():
    study = studies.rich(extra=["env.A=1 2"], recipe=[*studies.rich().recipe, Setting("env.A", "1 2")])
    lines = {one.what: " ".join(one.words) for one in repeats(study)}
    assert "--recipe recipe.toml --set 'env.A=1 2' -- python" in lines["Run with the recipe"]
    assert "verify recipe.toml --set 'env.A=1 2' -- python" in lines["Prove the recipe again"]


def test_a_recipe_is_run_verified_and_compared_with_and_without_each_setting():
    lines = [" ".join(one.words) for one in repeats(studies.rich())]
    assert any(line.startswith("dynotune run --recipe recipe.toml -- python train.py") for line in lines)
    assert any(line.startswith("dynotune recipe verify recipe.toml -- python train.py") for line in lines)
    first = " ".join(compares(studies.rich())[0].words)
    whole = "host.num_threads=4 loader.num_workers=8 precision.autocast=bf16"
    rest = "--baseline loader.num_workers=8 --baseline precision.autocast=bf16"
    assert first.startswith(f"dynotune compare {whole} {rest} --warmup 24")


def test_compares_leave_out_settings_that_were_not_tried():
    assert not any("cudaMallocAsync" in " ".join(one.words) for one in compares(studies.rich()))


@settings(max_examples=30, deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=5))
def test_a_shell_reads_the_words_that_were_meant_and_nothing_else_prints(arguments):
    line = words.command(arguments)
    assert line.isprintable()
    said = subprocess.run(["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, check=True).stdout
    assert said.decode().split("\0")[:-1] == arguments


def test_bars_before_and_after_are_of_one_scale():
    study = studies.rich()
    before, after = stacked(breakdowns(study)).rows
    assert study.confirmed is not None
    assert before.bar.length / after.bar.length == pytest.approx(study.confirmed.speedup, rel=1e-3)
    assert (before.figure, after.figure) == ("1.31 ms", "567 µs")


def test_bars_without_times_are_as_long_as_each_other_and_have_no_figures():
    untimed = studies.diagnosis(steps=Unknown("none was seen"))
    (row,) = stacked(breakdowns(studies.empty(diagnosis=untimed))).rows
    assert sum(segment.size for segment in row.bar.segments) == pytest.approx(1)
    assert (row.bar.length, row.figure) == (1.0, "")


def test_commands_of_a_study_that_began_from_a_recipe_have_its_settings():
    study = studies.on_top()
    lines = {one.what: " ".join(one.words) for one in [*repeats(study, recipe="new.toml"), *compares(study)]}
    assert "--recipe '/runs/a study/recipe.toml'" in lines["Tune again"]
    assert "--recipe new.toml" in lines["Go on from the recipe"]
    compared = [line for line in lines.values() if " compare " in line]
    assert compared and all(
        "compare cudnn.benchmark=true" in line and "--baseline cudnn.benchmark=true" in line
        for line in compared
    )


@pytest.mark.parametrize(
    ("ci", "word"), [((1.1, 1.5), "proved"), ((0.9, 1.5), "in recipe"), (None, "in recipe")]
)
def test_a_setting_that_was_proved_only_with_others_is_not_called_proved_itself(ci, word):
    setting = Setting("loader.num_workers", 2)
    own = (
        None
        if ci is None
        else Estimate(arm="a", against="", phase="switch", speedup=1.2, ci=ci, num_blocks=6)
    )
    row = Tried(Candidate(setting=setting, effect="exact"), "proved", "", own, None)
    assert row.word == word
