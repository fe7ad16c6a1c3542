"""What an observed run's record says: the window's timing, and the process's state as the schema has it."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune.launch.records import process_state
from dynotune.launch.records.process_state import failed_parts, state_of_process, timing
from dynotune.launch.records.record import ALLOCATED, COMPILED, EPOCH, GARBAGE, Step
from dynotune.schema.errors import RecordError
from dynotune.schema.events import Window
from dynotune.schema.facts import Unknown
from dynotune.schema.run import TimedWindow
from dynotune.schema.timing import PeriodicWork

from ...fakes import record, take


def timed(step_s, *, flags=None, waits=None, num_samples=None, drawn=True):
    steps, at_s = [], 10.0
    for index, took_s in enumerate(step_s):
        at_s += took_s
        steps.append(Step(at_s, (waits or {}).get(index, 0.0), 8, (flags or {}).get(index, 0)))
    window = TimedWindow(
        first_step=100, num_steps=len(step_s), begin_s=10.0, end_s=at_s, num_samples=num_samples,
        wait_s=sum(step.wait_s for step in steps),
    )  # fmt: skip
    return timing(window, steps, step_s, drawn=drawn)


def test_a_step_of_the_window_is_its_length_over_its_steps():
    found = timed([0.1] * 99 + [1.1], num_samples=800)
    assert found.step_s == pytest.approx(0.11)
    assert (found.median_step_s, found.p99_step_s, found.longest_step_s) == (0.1, 0.1, 1.1)
    assert found.samples_per_s == pytest.approx(800 / 11.0)


def test_the_slowest_hundredth_says_what_it_had_that_others_had_not():
    step_s = [0.1] * 300
    step_s[7], step_s[70], step_s[170] = 0.5, 0.4, 0.3
    found = timed(step_s, flags={7: GARBAGE | ALLOCATED, 70: EPOCH | COMPILED}, waits={170: 0.25})
    assert [(row.index, row.causes) for row in found.slow] == [
        (107, ["garbage", "allocation"]),
        (170, ["compilation", "epoch"]),
        (270, ["loader"]),
    ]
    assert found.typical_step_s == 0.1


def test_waits_are_no_cause_of_a_slow_step_when_every_step_has_them():
    step_s = [0.1] * 50 + [0.15]
    found = timed(step_s, waits=dict.fromkeys(range(51), 0.08))
    assert found.slow[0].causes == []


def test_the_usual_step_is_free_of_what_slow_ones_had():
    step_s = [0.2, 0.1] * 60 + [0.9]
    flags = {**dict.fromkeys(range(0, 120, 2), GARBAGE), 120: GARBAGE}
    assert timed(step_s, flags=flags).typical_step_s == 0.1
    assert timed([0.3], flags={0: GARBAGE}).typical_step_s is None


def test_epochs_and_waits_are_unknown_where_nothing_was_drawn():
    found = timed([0.1] * 10, flags={3: EPOCH, 8: EPOCH}, waits={3: 0.05})
    assert (found.num_epochs, found.epoch_begin_s, found.wait_s) == (2, 0.1, pytest.approx(0.005))
    assert timed([0.1] * 10, drawn=False).wait_s is None
    assert timed([0.1] * 10).epoch_begin_s is None


@given(
    st.lists(st.floats(1e-4, 10.0), min_size=1, max_size=400),
    st.lists(st.integers(0, 15), max_size=400),
)
def test_timing_holds_together_whatever_the_steps_were(step_s, flags):
    found = timed(step_s, flags=dict(enumerate(flags)))
    assert found.median_step_s <= found.p99_step_s <= found.longest_step_s == max(step_s)
    assert found.median_step_s == statistics.median(step_s)
    assert 1 <= len(found.slow) <= min(20, max(1, len(step_s) // 100))
    assert (
        min(row.step_s for row in found.slow) >= found.p99_step_s
        or len(found.slow) == 20
        or len(step_s) % 100
    )
    assert all(100 <= row.index < 100 + len(step_s) for row in found.slow)
    assert found.num_epochs == sum(bool(flag & EPOCH) for flag in flags[: len(step_s)])


def observed(said=None, **window):
    made = record([0.1] * 40)
    fields = {
        "first_step": 10,
        "num_steps": 20,
        "begin_s": 3.0,
        "end_s": 5.0,
        "num_samples": None,
        "wait_s": 0.5,
    }
    take(made, {"event": "window", **fields, **window})
    return made if said is None else take(made, {"event": "state", **said})


def test_a_state_that_says_nothing_is_unknown_and_not_empty():
    found = state_of_process(observed(), 1.0)
    assert isinstance(found.compilation, Unknown)
    assert isinstance(found.collections, Unknown)
    assert (found.timing.num_steps, found.timing.wait_s) == (20, 0.025)
    assert found.timing.time_to_first_step_s == pytest.approx(1.1)


def parsed(made, value):
    option = {"name": "batch_size", "words": ["--batch-size"], "value": value, "default": "8"}
    return take(made, {"event": "options", "parser": "argparse", "options": [option]})


def test_options_are_the_spawning_process_s_when_the_ranks_parse_none():
    parent = parsed(record([]), "32")
    assert [one.value for one in state_of_process(observed(), 1.0, others=[parent]).options] == ["32"]
    own = state_of_process(parsed(observed(), "16"), 1.0, others=[parent]).options
    assert [one.value for one in own] == ["16"]


def test_parts_that_failed_in_the_process_say_why():
    made = observed(
        {"failed": {"compilation": "KeyError: 'x'", "models": "it raised"}, "live": {"live.gc_enabled": True}}
    )
    found = state_of_process(made, 1.0, steady=False)
    assert isinstance(found.compilation, Unknown)
    assert "KeyError" in found.compilation.reason and found.failed["compilation"] == "KeyError: 'x'"
    assert found.live == {"live.gc_enabled": True}
    assert not found.timing.steady
    assert failed_parts(made) == ["compilation: KeyError: 'x'", "models: it raised"]


def test_an_unknown_fact_stays_unknown():
    live = {
        "live.device_name": {"type": "unknown", "reason": "the process does not use CUDA"},
        "live.gc_threshold": [700],
    }
    found = state_of_process(observed({"live": live}), 1.0).live
    assert found == {"live.device_name": Unknown("the process does not use CUDA"), "live.gc_threshold": [700]}


def test_a_models_call_knows_how_often_the_thread_was_seen_inside_of_it():
    called = {"function": "train.py(42): hints", "operator": "", "call": ""}
    call = {"grad_enabled": True, "inference_mode": False, "training": False, "place": called}
    models = [
        {"name": "Net", "num_parameters": 1, "parameter_bytes": 4, "call": each} for each in (call, None)
    ]
    frames = ["train.py(42): hints", "train.py(29): forward", "train.py(50): step"]
    moments = {
        "frames": frames,
        "texts": [""] * 3,
        "stacks": [[0, 1], [2]],
        "seen": [[0, 21], [1, 22], [0, 23], [0, 24]],
    }
    found = state_of_process(observed({"models": models, "moments": moments}), 1.0).models
    assert [model.call and model.call.seen_share for model in found] == [0.75, None]
    nobody = state_of_process(observed({"models": models}), 1.0).models
    assert nobody[0].call.seen_share is None


def test_without_a_window_nothing_was_timed():
    made = observed()
    del made.events[Window]
    assert isinstance(state_of_process(made, 1.0).timing, Unknown)


@pytest.mark.parametrize(
    "said",
    [
        {"loaders": [{"name": 3}]},
        {"models": {}},
        {"live": {"live.x": {"a": 1}}},
        {"collections": {"num": "many"}},
    ],
)
def test_a_damaged_state_is_refused(said):
    with pytest.raises(RecordError, match="damaged"):
        state_of_process(observed(said), 1.0)


def test_a_window_of_steps_that_are_not_there_is_refused():
    with pytest.raises(RecordError, match="damaged"):
        state_of_process(observed(first_step=30), 1.0)


def test_the_windows_first_step_begins_with_it():
    """Before it the device was waited for, which is not the step's."""
    made = record([0.1] * 40, begin_s=0.0)
    ends = [step.end_s for step in made.steps]
    steps = [Step(end_s + (0.9 if index >= 20 else 0.0), 0.0, 8, 0) for index, end_s in enumerate(ends)]
    fields = {"first_step": 20, "num_steps": 20, "begin_s": ends[19] + 0.9, "end_s": ends[39] + 0.9}
    window = {"event": "window", **fields, "num_samples": 160, "wait_s": 0.0, "num_compilations": 0}
    made.steps = steps
    take(made, window)
    timed = state_of_process(made, 0.0).timing
    assert timed.longest_step_s == pytest.approx(0.1)
    assert timed.window_s == pytest.approx(2.0)


def seen_once(share):
    return PeriodicWork(kind="validation", function="train.py(30): main", num_steps=1, share=share)


@pytest.mark.parametrize(
    ("before", "every"),
    [
        ([0.1] * 10 + [9.0] + [0.1] * 4, 10),  # as long as the window's one
        ([0.1] * 10 + [2.0] + [0.1] * 4, None),
        ([9.0] + [0.1] * 14, None),  # the first step compiles
        ([], None),
    ],
)
def test_work_of_one_step_has_a_distance_when_an_earlier_step_was_as_long(before, every):
    times = [*before, *[0.1] * 5, 10.0, *[0.1] * 5]
    assert process_state._with_earlier(seen_once(0.9), {5}, len(before), times).every == every


@pytest.mark.parametrize(("share", "long_s"), [(0.2, 10.0), (0.9, 0.3)])
def test_work_of_one_step_has_no_distance_when_the_step_may_have_been_disturbed(share, long_s):
    times = [*[0.1] * 10, long_s, *[0.1] * 4, *[0.1] * 5, long_s, *[0.1] * 5]
    assert process_state._with_earlier(seen_once(share), {5}, 15, times).every is None
