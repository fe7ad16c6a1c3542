"""A run's value of each objective, and where it cannot be known."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune.measure.bench.windows import for_pairs
from dynotune.measure.comparison import objective
from dynotune.measure.comparison.objective import unit_of, value
from dynotune.measure.live import window_plan
from dynotune.measure.live.outcome import Outcome
from dynotune.measure.live.readiness import FirstStep
from dynotune.measure.live.request import CompareRequest
from dynotune.measure.live.window_plan import plan_window
from dynotune.schema.errors import CannotRunHere, StatisticsError
from dynotune.schema.events import Window
from dynotune.schema.facts import Unknown

from ...fakes import START_S, disturbed, process, record, run, spec, take, window

LAUNCHED_S = 0.5


def outcome(*processes, records=(), ended_by="window", **run_fields) -> Outcome:
    made = run(*processes, ended_by=ended_by, **run_fields)
    return Outcome(
        run=made, folder=Path("/"), launched_s=LAUNCHED_S, records=list(records), all_records=list(records)
    )


def timed(step_s, *, first_step=0, begin_s=START_S) -> Outcome:
    """A run whose window begins at `begin_s`, when its step number `first_step` does."""
    num_steps = len(step_s) - first_step
    return outcome(
        process(window(num_steps=num_steps, first_step=first_step, begin_s=begin_s)), records=[record(step_s)]
    )


def request_for(name, **changes):
    return spec(objective=name, **changes)


# Latency


def test_the_99th_percentile_is_the_step_that_one_in_a_hundred_exceeds():
    steps = [0.001 * (1 + at % 200) for at in range(200)]
    assert value(timed(steps), "latency-p99", "step") == pytest.approx(0.198)


@given(st.lists(st.floats(1e-4, 10.0), min_size=1, max_size=400))
def test_at_most_one_step_in_a_hundred_is_slower_and_some_step_took_just_as_long(steps):
    found = value(timed(steps), "latency-p99", "step")
    assert sum(step_s > found * (1 + 1e-6) for step_s in steps) <= len(steps) / 100
    assert min(abs(step_s - found) for step_s in steps) < 1e-6


def called(call_s) -> Outcome:
    """A run whose steps last a second each, and whose calls take `call_s`."""
    made = timed([1.0] * max(1, len(call_s)))
    timed_calls = Window(
        first_step=0, num_steps=1, begin_s=0.0, end_s=1.0, num_samples=None, wait_s=None, call_s=call_s
    )
    made.records[0].events = {Window: [timed_calls]}
    return made


def test_call_latency_is_of_the_calls_alone_when_steps_wait_between_them():
    calls = [0.001 * (1 + at % 200) for at in range(200)]
    assert value(called(calls), "call-latency-p99", "step") == pytest.approx(0.198)


def test_call_latency_names_what_to_give_when_no_call_was_timed():
    with pytest.raises(StatisticsError, match="--step-function"):
        value(called([]), "call-latency-p99", "step")


def test_only_steps_of_the_window_count_and_getting_it_ready_does_not():
    steps = [5.0] * 10 + [0.1] * 100
    # The window begins half of the first step's time after the step before it has ended.
    late = timed(steps, first_step=10, begin_s=START_S + 50.0 + 0.05)
    assert value(late, "latency-p99", "step") == pytest.approx(0.1)


def test_the_slowest_rank_says_the_latency():
    quick, slow = record([0.1] * 100, rank=0), record([0.3] * 100, rank=1)
    slow.pid = 2
    ranks = [process(window(first_step=0, begin_s=START_S))]
    ranks.append(
        type(ranks[0])(**{**{f: getattr(ranks[0], f) for f in ranks[0].__struct_fields__}, "pid": 2})
    )
    assert value(outcome(*ranks, records=[quick, slow]), "latency-p99", "step") == pytest.approx(0.3)


def test_steps_that_are_missing_in_the_record_give_no_percentile():
    cut = outcome(process(window(num_steps=100, first_step=0)), records=[record([0.1] * 50)])
    with pytest.raises(StatisticsError, match="50"):
        value(cut, "latency-p99", "step")
    with pytest.raises(StatisticsError, match="no window"):
        value(outcome(process(None), records=[record([0.1] * 50)]), "latency-p99", "step")


# Time to first step


def test_the_time_to_the_first_step_runs_from_the_launch_to_the_slowest_ranks_first_step():
    ranks = [record([0.1] * 5, rank=0), record([0.4] * 5, rank=1)]
    assert value(outcome(records=ranks), "time-to-first-step", "step") == pytest.approx(
        START_S + 0.4 - LAUNCHED_S
    )
    with pytest.raises(StatisticsError, match="no step"):
        value(outcome(), "time-to-first-step", "step")


def test_a_run_goes_on_until_it_makes_the_step_that_its_pilot_ended_with():
    enough = FirstStep(outcome(records=[record([0.1] * 50)]))
    early = record([0.1] * 4)
    take(
        early,
        {"event": "cycle", "parts": [{"kind": "draw", "name": "Loader"}, {"kind": "call", "name": "Net"}]},
    )
    assert not enough([])
    assert not enough([early])
    assert enough([record([0.1])])
    # It never comes; then what the pilot took must do.
    early.steps.extend(record([0.1] * 46).steps)
    assert enough([early])


def test_runs_that_end_with_their_first_step_time_no_window():
    pilots = [outcome(records=[record([1.0] * 50, found_after=3)]) for _ in range(2)]
    planned, num_pairs = for_pairs(
        CompareRequest(run=request_for("time-to-first-step"), candidate=[]), pilots, None
    )
    assert (planned.num_steps, planned.warmup_steps, num_pairs) == (0, 0, 12)
    assert planned.run_s == pytest.approx(START_S + 4.0 - LAUNCHED_S)
    _, afforded = for_pairs(
        CompareRequest(run=request_for("time-to-first-step"), candidate=[]), pilots, 6 * 2 * planned.run_s + 1
    )
    assert afforded == 6


# Memory


def test_the_allocators_peaks_of_all_ranks_are_the_memory_of_a_program_with_devices():
    ranks = [process(window(), peak_device_bytes=3 << 30, peak_rss_bytes=9 << 30) for _ in range(2)]
    assert value(outcome(*ranks), "memory", "sample") == 6 << 30


def test_without_a_device_it_is_the_whole_tree_and_never_less_than_its_largest_process():
    main, worker = process(window(), peak_rss_bytes=500), process(None, peak_rss_bytes=300)
    assert value(outcome(main, worker, peak_tree_bytes=700), "memory", "sample") == 700
    assert value(outcome(main, worker, peak_tree_bytes=400), "memory", "sample") == 500
    with pytest.raises(StatisticsError, match="hidden"):
        value(outcome(main, peak_tree_bytes=Unknown("hidden")), "memory", "sample")


def test_others_on_the_cores_do_not_void_what_is_said_of_memory():
    runs = {"baseline": disturbed(outcome()), "candidate": outcome()}
    assert objective.void_reasons("memory", runs) == []
    assert len(objective.void_reasons("energy", runs)) == 1


# Energy


def test_energy_is_of_a_sample_or_of_a_step():
    one = outcome(process(window(num_steps=100, num_samples=400)), energy_j=200.0, energy_from="power")
    assert value(one, "energy", "sample") == pytest.approx(0.5)
    assert value(one, "energy", "step") == pytest.approx(2.0)
    assert "sampled" in objective.notes("energy", [one])[0]
    assert objective.notes("throughput", [one]) == []
    with pytest.raises(StatisticsError, match="no driver"):
        value(outcome(process(window()), energy_j=Unknown("no driver")), "energy", "sample")
    with pytest.raises(StatisticsError, match="could not be counted"):
        value(outcome(process(window(num_samples=None)), energy_j=1.0), "energy", "sample")


@pytest.mark.parametrize("gpus", [[], Unknown("a GPU is split by MIG")])
def test_energy_without_a_gpu_is_refused_before_anything_runs(monkeypatch, gpus):
    monkeypatch.setattr("dynotune.probe.sources.nvml.visible_gpus", lambda env: gpus)
    with pytest.raises(CannotRunHere, match="energy needs a GPU"):
        objective.refuse_impossible(request_for("energy"))
    objective.refuse_impossible(request_for("throughput"))


# All of them


def test_a_value_that_is_zero_or_no_number_is_none():
    with pytest.raises(StatisticsError, match="nothing can be compared"):
        value(outcome(process(window()), energy_j=0.0), "energy", "sample")


def test_every_objective_has_a_unit():
    assert unit_of("throughput", "sample") == "s/sample"
    assert unit_of("energy", "step") == "J/step"
    assert [unit_of(name, "step") for name in ("latency-p99", "time-to-first-step", "memory")] == [
        "s",
        "s",
        "bytes",
    ]


# The window that an objective needs


@pytest.mark.parametrize(
    ("name", "step_s", "least", "most"),
    [("latency-p99", 0.001, 1000, 10_000), ("latency-p99", 0.1, 290, 310), ("latency-p99", 1.0, 200, 200),
     ("energy", 0.01, 300, 3000), ("throughput", 1.0, 10, 40)],
)  # fmt: skip
def test_the_window_is_as_long_as_the_objective_needs(name, step_s, least, most):
    jitter = itertools.cycle([0.99, 1.01])
    pilots = [outcome(records=[record([step_s * next(jitter) for _ in range(100)])]) for _ in range(2)]
    assert least <= plan_window(request_for(name), pilots).num_steps <= most


def test_a_window_that_the_user_asked_for_is_taken_and_a_short_one_is_cautioned():
    pilots = [outcome(records=[record([0.01] * 100)]) for _ in range(2)]
    assert plan_window(request_for("latency-p99", window_steps=50), pilots).num_steps == 50
    assert len(objective.cautions("latency-p99", 50)) == 2
    (caution,) = objective.cautions("latency-p99", 1000)
    assert "has 10 of them beyond it" in caution
    assert objective.cautions("throughput", 50) == []


@pytest.mark.parametrize("name", ["latency-p99", "energy"])
def test_a_program_that_ends_too_early_for_its_objective_is_refused(name):
    short = [outcome(records=[record([0.005] * 80)], ended_by="command") for _ in range(2)]
    with pytest.raises(CannotRunHere, match=r"99th percentile|energy"):
        for_pairs(CompareRequest(run=request_for(name), candidate=[]), short, None)


def test_a_budget_that_affords_few_pairs_still_gives_each_the_steps_of_a_percentile():
    pilots = [outcome(records=[record([0.05] * 100)]) for _ in range(2)]
    planned, num_pairs = for_pairs(
        CompareRequest(run=request_for("latency-p99"), candidate=[]), pilots, 130.0
    )
    assert planned.num_steps >= window_plan.FEW_P99_STEPS
    assert 4 <= num_pairs < 12
    assert 2 * num_pairs * planned.run_s <= 130.0
