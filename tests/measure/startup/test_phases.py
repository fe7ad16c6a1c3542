"""Spans that lie inside one another become shares of one stretch of time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune.launch.records.record import Record
from dynotune.measure.startup import phases
from dynotune.measure.startup.phases import split
from dynotune.schema.events import StartCovered
from dynotune.schema.facts import Unknown
from dynotune.schema.startup import PHASES, Span

from ...fakes import record, take

TIMES = st.integers(-50, 150).map(float)
SPANS = st.lists(st.builds(Span, st.sampled_from(list(PHASES)), TIMES, TIMES), max_size=12)


@given(SPANS)
def test_all_of_the_time_is_shared_out_once(spans):
    found = split(spans, 0.0, 100.0)
    assert sum(found.values()) == pytest.approx(100.0)
    assert all(value >= 0 for value in found.values())


@given(SPANS)
def test_each_moment_belongs_to_the_span_around_it_that_began_last(spans):
    expected = dict.fromkeys(PHASES, 0.0)
    for at in range(100):  # all begins and ends are whole numbers
        around = [span for span in spans if span.begin_s <= at and span.end_s >= at + 1]
        latest = max((span.begin_s for span in around), default=None)
        inner = [span for span in around if span.begin_s == latest]
        shortest = min((span.end_s for span in inner), default=None)
        candidates = {span.phase for span in inner if span.end_s == shortest} or {"other"}
        if len(candidates) > 1:
            return  # two spans alike: either may have it
        expected[candidates.pop()] += 1
    found = split(spans, 0.0, 100.0)
    assert {phase: value for phase, value in expected.items() if value} == {
        p: v for p, v in found.items() if v
    }


@given(SPANS, st.randoms())
def test_the_order_in_which_spans_were_recorded_does_not_matter(spans, shuffle):
    starts = [(span.begin_s, span.end_s) for span in spans]
    if len(set(starts)) < len(starts):
        return
    mixed = spans.copy()
    shuffle.shuffle(mixed)
    assert split(mixed, 0.0, 100.0) == pytest.approx(split(spans, 0.0, 100.0))


def test_phases_take_the_time_of_inner_spans_from_outer_ones():
    spans = [Span("weights", 10, 90), Span("model_build", 20, 50), Span("imports", 30, 35)]
    assert split(spans, 0, 100) == {"other": 20, "weights": 50, "model_build": 25, "imports": 5}


def started(*spans, kinds=("draw", "step"), wait_s=0.0, **events) -> Record:
    """A process that was launched at 0 and ended its first step at 10."""
    made = record([1.0, 1.0], begin_s=9.0)
    take(made, {"event": "cycle", "begin_s": 9.0, "kinds": kinds}, {"event": "starting", "unknown": {}})
    for phase, begin, end, name in [("agent", 0.5, 0.6, ""), *spans]:
        take(made, {"event": "span", "phase": phase, "begin_s": begin, "end_s": end, "name": name})
    take(made, *({"event": name, **event} for name, event in events.items()))
    first = made.steps[0]
    made.steps[0] = type(first)(first.end_s, wait_s, first.num_samples, first.flags)
    return made


def test_imports_before_torch_are_told_from_those_after_also_where_another_module_imports_torch():
    made = started(
        ("imports", 0.6, 1.0, "yaml"), ("imports", 1.0, 5.0, "vision"), ("torch_import", 2.0, 4.0, "torch")
    )  # fmt: skip
    found = phases.phases(made, 0.0, 10.0)
    assert found["imports_before_torch"] == pytest.approx(1.4)
    assert found["torch_import"] == pytest.approx(2.0)
    assert found["imports"] == pytest.approx(1.0)
    assert phases.imports(made)[0] == ("vision", 4.0)


def test_all_phases_are_told_in_their_order_and_sum_to_the_start():
    found = phases.phases(started(("compile", 9.2, 9.7, ""), wait_s=0.1), 0.0, 10.0)
    assert list(found) == list(PHASES)
    assert sum(found.values()) == pytest.approx(10.0)
    assert (found["compile"], found["first_batch"], found["first_step"]) == pytest.approx((0.5, 0.1, 0.4))
    assert found["model_build"] == 0.0


def test_the_wait_for_a_batch_is_no_more_than_the_step_that_it_is_part_of():
    found = phases.phases(started(wait_s=7.0), 0.0, 10.0)
    assert (found["first_batch"], found["first_step"]) == (1.0, 0.0)
    assert sum(found.values()) == pytest.approx(10.0)


def test_a_step_that_begins_with_a_call_began_when_the_call_did():
    made = started(kinds=["call"], root={"at_s": 7.0})
    assert phases.phases(made, 0.0, 10.0)["first_step"] == pytest.approx(3.0)
    drawn = started(root={"at_s": 7.0})
    assert phases.phases(drawn, 0.0, 10.0)["first_step"] == pytest.approx(1.0)


def test_launcher_phase_holds_the_time_before_the_process():
    found = phases.phases(started(starting_process={"started_s": 0.3}), 0.0, 10.0)
    assert (found["launcher"], found["interpreter"]) == pytest.approx((0.3, 0.2))
    # A clock that says something impossible says nothing.
    for odd in (-5.0, 0.7, "soon"):
        found = phases.phases(started(starting_process={"started_s": odd}), 0.0, 10.0)
        assert (found["launcher"], found["interpreter"]) == pytest.approx((0.0, 0.5))


def test_phase_is_unknown_with_its_reason_and_lies_in_the_rest_when_it_could_not_be_seen():
    made = started(("cuda_start", 2.0, 3.0, ""))
    take(made, {"event": "starting", "unknown": {"model_build": "too old"}})
    found = phases.phases(made, 0.0, 10.0)
    assert found["model_build"] == Unknown("too old")
    assert sum(value for value in found.values() if not isinstance(value, Unknown)) == pytest.approx(10.0)


def test_without_torch_its_parts_are_unknown_and_without_a_record_all_are():
    made = started()
    del made.events[StartCovered]
    assert isinstance(phases.phases(made, 0.0, 10.0)["compile"], Unknown)
    assert all(isinstance(value, Unknown) for value in phases.phases(record([1.0]), 0.0, 10.0).values())


def test_graphs_that_the_cache_gave_are_told_from_those_that_were_compiled():
    counts = {
        "fxgraph_cache_hit": 2,
        "fxgraph_cache_miss": 1,
        "fxgraph_cache_bypass": 1,
        "autograd_cache_hit": 9,
    }
    found = phases.compiled(started(compiled={"counts": counts, "compile_threads": 8}))
    assert (found.num_found, found.num_missed, found.num_threads) == (2, 2, 8)
    assert phases.compiled(started()) is None


def test_threads_that_overlap_share_no_moment_twice():
    spans = [Span("compile", begin, begin + 30) for begin in range(0, 90, 10)]
    assert split(spans, 0, 120) == {"other": 10, "compile": 110}
