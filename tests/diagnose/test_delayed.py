"""Which parts are delayed, and what answers to delays say of a bottleneck and of what a cure can save."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune.diagnose.delayed import PART_OF, corrected, most_saved
from dynotune.schema.delays import Answered, DelayTest, DelayTests
from dynotune.schema.facts import Unknown

STEP_S = 0.1
AVOIDABLE = {"input": 0.3, "transfer": 0.0, "communication": 0.0, "memory": 0.0, "host": 0.4}


def part(name, slope, half=0.1, slack_s=None):
    """A part whose step answers with `slope`; with `slack_s`, it hides delays up to that."""
    delays = (0.25 * STEP_S, 0.5 * STEP_S)
    longer = [slope * each if slack_s is None else max(0.0, each - slack_s) for each in delays]
    answers = [
        Answered(delay_s=each, longer_s=s, ci=(s - half * each, s + half * each), num_blocks=4)
        for each, s in zip(delays, longer, strict=True)
    ]
    found = longer[0] / delays[0]
    return DelayTest(
        part=name, slope=found, ci=(found - half, found + half), slack_s=slack_s, answers=answers
    )


def all_of(*parts):
    return DelayTests(step_s=STEP_S, tests=list(parts))


@pytest.mark.parametrize(
    ("found", "parts", "expected"),
    [
        ("host", [part("host", 1.0), part("device", 0.1)], "host"),
        ("host", [part("host", 0.0), part("device", 1.0)], "device"),
        ("device", [part("host", 1.1), part("device", 0.2)], "host"),
        ("input", [part("host", 1.0), part("device", 0.0), part("loader", 0.0)], "host"),
        ("host", [part("host", 0.1), part("device", 0.0), part("loader", 1.2)], "input"),
        (
            "host",
            [part("host", 0.3, half=0.4), part("device", 1.0)],
            "host",
        ),  # the host's answer does not decide
        (
            "host",
            [part("host", 0.0), part("device", 0.6, half=0.3)],
            "host",
        ),  # no other part is clearly critical
        ("memory", [part("host", 1.0), part("device", 0.0)], "memory"),
        ("communication", [part("host", 1.0), part("device", 0.0)], "communication"),
        ("none", [part("host", 1.0), part("device", 0.0)], "none"),
    ],
)
def test_bottleneck_follows_the_delays_when_they_decide(found, parts, expected):
    name, told = corrected(found, AVOIDABLE, all_of(*parts), has_device=True)
    assert name == expected
    assert bool(told) == (expected != found)


def test_operators_stay_the_bottleneck_when_there_is_no_device_and_python_takes_little():
    parts = all_of(part("host", 1.0), part("loader", 0.0))
    assert corrected("input", {**AVOIDABLE, "host": 0.05}, parts, has_device=False)[0] == "device"
    assert corrected("input", AVOIDABLE, parts, has_device=False)[0] == "host"


def test_bottleneck_stays_when_nothing_was_delayed():
    assert corrected("host", AVOIDABLE, Unknown("not asked for"), has_device=True) == ("host", "")
    assert most_saved("host", Unknown("not asked for")) is None


@given(
    st.sampled_from(sorted(PART_OF)),
    st.lists(st.tuples(st.sampled_from(["host", "device"]), st.floats(-1, 2))),
)
def test_bottleneck_is_never_one_whose_part_was_not_delayed(found, answers):
    parts = {name: part(name, slope) for name, slope in answers}
    name, told = corrected(found, AVOIDABLE, all_of(*parts.values()), has_device=True)
    assert name == found or (PART_OF[name] in parts and told)


@given(st.floats(0.3, 0.45))
def test_savings_are_bounded_by_the_slack_when_another_part_answers(share):
    slack_s = share * STEP_S
    found = most_saved("host", all_of(part("host", 1.0), part("device", 0.0, half=0.01, slack_s=slack_s)))
    assert found is not None
    most, other = found
    assert other == "the device"
    assert share - 1e-9 <= most <= share + 0.02


@pytest.mark.parametrize(
    "parts",
    [
        [part("host", 1.0), part("device", 0.0)],  # its slack is larger than any delay
        [
            part("host", 0.4, half=0.3),
            part("device", 0.0, slack_s=0.3 * STEP_S),
        ],  # the host may not be critical
        [part("device", 0.0, slack_s=0.3 * STEP_S)],
    ],
)
def test_savings_are_not_bounded_when_the_slack_is_not_known(parts):
    assert most_saved("host", all_of(*parts)) is None
