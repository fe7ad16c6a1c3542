from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dynotune.schema.attribution import Predicted
from dynotune.schema.comparison import MOST_PAIRS
from dynotune.text import exit_codes, words

RATIOS = st.floats(min_value=0, exclude_min=True, allow_infinity=True)
SAID = [words.interval, words.percent_interval, words.saved_interval]


@pytest.mark.parametrize(
    ("exit_code", "said"), [(0, "with exit code 0"), (3, "with exit code 3"), (-9, "by signal 9")]
)
def test_ending_names_the_signal_when_the_exit_code_is_negative(exit_code, said):
    assert words.ending(exit_code) == said


@pytest.mark.parametrize(
    ("took_s", "told"),
    [(0.5, "500 ms"), (359.0, "5.98 min"), (720.0, "12 min (0.2 h)"), (7200.0, "2 h"), (-7200.0, "−2 h")],
)
def test_hours_are_told_when_a_time_is_a_tenth_of_one(took_s, told):
    assert words.hours(took_s) == told


@pytest.mark.parametrize(("joules", "told"), [(360.0, "0.1 Wh"), (7.2e6, "2 kWh"), (-360.0, "−0.1 Wh")])
def test_energy_is_in_kilowatt_hours_when_it_is_large(joules, told):
    assert words.energy(joules) == told


def test_ending_is_the_only_place_that_spells_an_exit_code():
    """A number after "exit code" or "signal" elsewhere would show exit code -9, or other words for it."""
    sources = Path(words.__file__).parents[1]
    spelt = re.compile(r"(?:exit code|by signal|with signal)\W*\{")
    files = [path for path in sources.rglob("*") if path.suffix in (".py", ".md", ".html", ".toml")]
    places = [path for path in files if spelt.search(path.read_text("utf-8")) and "agent" not in path.parts]
    assert places == [Path(exit_codes.__file__)]


def test_a_verdict_is_said_as_a_person_would_say_it(comparison):
    assert words.verdict(comparison(verdict="faster", speedup=1.4162)) == "1.42× faster"
    assert words.verdict(comparison(verdict="slower", speedup=0.8)) == "1.25× slower"
    assert words.verdict(comparison(verdict="same", margin=0.01)) == "no effect: within ±1%"
    assert words.verdict(comparison(verdict="undecided", num_pairs_to_settle=None)) == "undecided"
    assert words.verdict(comparison(verdict=None)) == "no verdict"


def test_a_small_effect_is_said_in_percent(comparison):
    assert words.verdict(comparison(verdict="faster", speedup=1.032)) == "3.2% faster"
    assert words.verdict(comparison(verdict="slower", speedup=1 / 1.032)) == "3.2% slower"


def test_an_undecided_comparison_says_how_many_pairs_a_new_one_would_need(comparison):
    undecided = comparison(verdict="undecided", num_pairs=12, num_pairs_to_settle=20)
    assert words.verdict(undecided) == "undecided: 20 pairs would likely settle it"


@pytest.mark.parametrize(
    ("num", "said"),
    [(20, "20 blocks would likely settle it"), (MOST_PAIRS + 1, "it would take 49 blocks, more than 48")],
)
def test_undecided_comparison_speaks_of_blocks_when_it_ran_within_one_process(comparison, num, said):
    undecided = comparison(verdict="undecided", within=True, num_pairs=12, num_pairs_to_settle=num)
    assert words.verdict(undecided).startswith(f"undecided: {said}")


def test_pairs_that_nobody_may_ask_for_are_not_advised(comparison):
    undecided = comparison(verdict="undecided", num_pairs=12, num_pairs_to_settle=MOST_PAIRS + 1)
    told = "undecided: it would take 49 pairs, more than 48; lengthen runs: --steps"
    assert words.verdict(undecided) == told


@pytest.mark.parametrize(
    "said",
    [
        *(words.times, words.interval, words.rate, words.duration, words.change, words.share),
        *(words.fine_share, words.count, words.bandwidth, words.num_bytes),
    ],
    ids=lambda function: function.__name__,
)
def test_values_are_called_unknown_and_never_zero_when_nothing_is_known(said):
    assert said(None) == "unknown"


def test_a_narrow_interval_shows_the_digits_that_tell_its_ends_apart(comparison):
    narrow = comparison(speedup=1.0062, ci=(1.0041, 1.0083))
    assert words.interval(narrow.ci) == "1.004× to 1.008×"
    assert words.speedup(narrow) == "1.006×"
    assert words.interval((1.31, 1.52)) == "1.31× to 1.52×"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0, "0 µs"),
        (3.5e-6, "3.5 µs"),
        (999.4e-6, "999 µs"),
        (999.9e-6, "1 ms"),
        (0.9997, "1 s"),
        (0.0568, "56.8 ms"),
        (0.42, "420 ms"),
        (1.914, "1.91 s"),
        (150, "2.5 min"),
    ],
)
def test_durations_carry_a_unit_and_three_digits(seconds, said):
    assert words.duration(seconds) == said


def test_a_change_has_its_sign():
    assert [words.change(s) for s in (0.0081, -0.00035, 0.0)] == ["+8.1 ms", "−350 µs", "0 µs"]


def test_small_shares_are_told_apart_and_only_nothing_is_zero():
    assert [words.fine_share(s) for s in (0.521, 0.0994, 0.0995, 0.004, 0.0001, 0)] == [
        *("52%", "9.9%", "10%", "0.4%", "< 0.1%", "0%")
    ]


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.2, 0.32, "save 20% to 32% of a step"),
        (0.101, 0.104, "save 10% of a step"),
        (-0.03, 0.08, "cost up to 3% of a step or save up to 8%"),
        (-0.1, -0.02, "cost up to 10% of a step"),
        (-0.001, 0.002, "change next to nothing"),
    ],
)
def test_a_prediction_says_what_it_costs_too_and_that_nobody_has_tried_it(low, high, said):
    assert words.predicted(Predicted(low, high)) == f"predicted to {said}, not proved"


def test_sizes_and_bandwidths_have_a_unit_that_fits():
    assert [words.num_bytes(n) for n in (4, 2048, 3.5 * 2**20, 300 * 2**20, 2**31)] == [
        *("4 B", "2 KiB", "3.5 MiB", "300 MiB", "2.00 GiB")
    ]
    assert [words.bandwidth(n) for n in (12.34e9, 0.9999e9, 5e6, 2e3, 10)] == [
        *("12.3 GB/s", "1 GB/s", "5 MB/s", "2 kB/s", "10 B/s")
    ]


def test_a_count_is_whole_unless_it_is_a_mean():
    assert [words.count(n) for n in (3, 1 / 3, 4210, 1234.6)] == ["3", "0.333", "4,210", "1,235"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("train.py(31): step µ é 层", "train.py(31): step µ é 层"),
        ("a\x1b[31mred\x07", "a\\x1b[31mred\\x07"),
        ("two\nlines\tand\rmore\x85", "two\\nlines\\tand\\rmore\\x85"),
        ("safe\u202egnp.exe", "safe\\u202egnp.exe"),
        ("half \udc80", "half \\udc80"),
        ("[red]x[/red]", "[red]x[/red]"),
    ],
)
def test_text_of_a_stranger_cannot_steer_the_terminal(text, said):
    assert words.plain(text) == said


@given(st.lists(st.binary(min_size=1).filter(lambda word: b"\0" not in word), min_size=1, max_size=20))
@settings(max_examples=20, deadline=None)
def test_a_command_that_is_shown_is_the_same_bytes_for_a_shell(arguments):
    shown = words.command(map(os.fsdecode, arguments))
    assert shown.isprintable()
    line = f"set -f; for word in {shown}; do printf '%s\\0' \"$word\"; done"
    assert subprocess.check_output(["bash", "-c", line]).split(b"\0")[:-1] == arguments


def test_half_a_character_that_is_no_byte_can_be_shown_too():
    assert words.command(["\ud800"]) == r"$'\xed\xa0\x80'"


def test_text_of_a_stranger_has_an_end():
    assert words.plain("x" * 100, longest=10) == "x" * 9 + "…"


def test_an_arm_without_settings_is_the_command_as_it_is():
    assert words.settings([]) == "as it is"


def test_a_ratio_beyond_reason_shows_no_digits(comparison):
    assert words.interval((1e-59, 2e-3)) == "< 0.01× to < 0.01×"
    assert words.interval((0.5, 2e59)) == "0.50× to > 100×"
    assert words.verdict(comparison(verdict="slower", speedup=1e-9)) == "> 100× slower"
    assert words.times(100.0) == "100.00×"


def test_an_interval_that_leaves_all_open_is_called_so_in_words():
    for ci in [(1e-12, 3e10), (0.05, 11.0), (5e-324, float("inf"))]:
        assert {said(ci) for said in SAID} == {words.TOO_WIDE}
    assert words.interval((0.2, 20.0)) == "0.20× to 20.00×"


def test_an_interval_in_percent_has_its_signs_and_is_cut_where_digits_say_nothing():
    assert words.percent_interval((1.004, 1.059)) == "+0.4% to +5.9%"
    assert words.percent_interval((0.979, 3e12)) == "−2.1% to > +900%"
    assert words.percent_interval((1e-9, 1.05)) == "< −90% to +5.0%"
    assert words.saved_interval((0.5, 2.0)) == "−100.0% to 50.0%"
    assert words.saved_interval((1e-9, 2.0)) == "< −900% to 50.0%"
    assert words.saved(1e-9) == "< −900%"
    assert words.saved(None) == words.saved(float("nan")) == "unknown"


@pytest.mark.parametrize("said", SAID, ids=lambda function: function.__name__)
@given(RATIOS, RATIOS)
@example(5e-324, 5e-324)
@example(float("inf"), float("inf"))
def test_no_interval_shows_more_digits_than_a_person_reads(said, one, other):
    text = said((min(one, other), max(one, other)))
    assert len(text) <= 30
    assert "e+" not in text and "nan" not in text and "inf" not in text
    assert max(map(len, re.findall(r"[\d,]+", text)), default=0) <= 4
    if text != words.TOO_WIDE:
        assert text.count(" to ") == 1


@pytest.mark.parametrize("said", SAID, ids=lambda function: function.__name__)
@pytest.mark.parametrize("ci", [(float("nan"), 1.0), (0.0, 1.0), (-1.0, 1.0)])
def test_an_interval_that_is_none_is_unknown(said, ci):
    assert said(ci) == "unknown"


def test_verdict_says_less_or_more_used_when_the_objective_is_not_time(comparison):
    assert (
        words.verdict(comparison(objective="memory", verdict="faster", speedup=1.25))
        == "uses 20% less memory"
    )
    less = comparison(objective="energy", verdict="faster", speedup=1.25, ci=(1.111, 1.4))
    assert words.answered(less) == ("uses 20% less energy", "10.0% to 28.6%")
    assert (
        words.verdict(comparison(objective="memory", verdict="slower", speedup=0.8)) == "uses 25% more memory"
    )
    assert (
        words.verdict(comparison(objective="energy", verdict="slower", speedup=0.4))
        == "uses 2.50 times the energy"
    )
    assert words.verdict(comparison(objective="energy", verdict="same")) == "no effect: within ±1%"


@pytest.mark.parametrize(
    ("verdict", "speedup", "ci", "answer"),
    [
        ("faster", 1.25, (1.2, 1.3), ("1.25× faster", "1.20× to 1.30×")),
        ("slower", 0.5556, (0.45, 0.69), ("1.80× slower", "1.45× to 2.22×")),
        ("faster", 1.04, (1.01, 1.07), ("4% faster", "+1.0% to +7.0%")),
        ("undecided", 1.02, (0.97, 1.07), ("undecided", "0.97× to 1.07×")),
    ],
)
def test_answer_is_one_number_in_one_direction(comparison, verdict, speedup, ci, answer):
    assert words.answered(comparison(verdict=verdict, speedup=speedup, ci=ci)) == answer


def test_a_verdict_says_in_what_it_is_faster(comparison):
    assert words.verdict(comparison(objective="latency-p99")) == "1.42× faster at the 99th percentile"
    assert words.verdict(comparison(objective="time-to-first-step")) == "1.42× faster to its first step"


def test_a_value_is_said_in_the_unit_of_its_objective():
    assert words.value(0.0025, "throughput") == "400 samples/s"
    assert words.value(0.0025, "throughput", "step") == "400 steps/s"
    assert words.value(0.0025, "latency-p99") == "2.5 ms"
    assert words.value(12.5, "time-to-first-step") == "12.5 s"
    assert words.value(3 << 30, "memory") == "3.00 GiB"
    assert words.value(0.0325, "energy") == "32.5 mJ"
    assert words.value(1.5, "energy") == "1.5 J"
    assert words.value(None, "energy") == "unknown"


def test_progress_of_a_slower_arm_is_said_as_slower():
    assert words.so_far(0.5, (0.4, 0.625)) == "so far 2.00× slower (1.60× to 2.50×)"
    assert words.so_far(0.97, (0.9, 1.04)) == "so far 0.97× (0.90× to 1.04×)"


def test_ratio_has_no_brackets_when_no_interval_is_known():
    assert words.with_interval(1.8, (1.45, 2.22)) == "1.800× (1.45× to 2.22×)"
    assert words.with_interval(1.8, None) == "1.800×"
    assert words.with_interval(1.8, (0.0, 2.0), digits=2) == "1.80×"


@pytest.mark.parametrize(("ratio", "told"), [(0.8, "1.25× slower"), (0.98, "0.98×"), (1.1, "1.10×")])
def test_single_pair_is_written_in_the_direction_of_all_pairs(ratio, told):
    assert words.single(ratio) == told
    assert words.so_far(ratio, None) == f"so far {told}"
