from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune.schema.trace_summary import Cause, Place, TraceSummary
from dynotune.trace.differences import difference

STEP = Place("src/train.py(31): step", "aten::item", "cudaStreamSynchronize")


def summary(
    *causes: Cause, window_s: float | None = 0.3, num_steps: int | None = 3, **changes: Any
) -> TraceSummary:
    fields: dict[str, Any] = {
        "files": [],
        "recorder": "torch.profiler",
        "verdict": "",
        "step_source": "profiler" if num_steps else None,
        "shares": None,
        "ranks": None,
        **{name: [] for name in ("devices", "gaps", "copies", "syncs", "allocations", "kernels")},
        **{name: [] for name in ("communication", "operators")},
    }
    return TraceSummary(causes=list(causes), window_s=window_s, num_steps=num_steps, **(fields | changes))


def cause(id: str = "sync-per-step", lost_s: float = 0.03, where: Place = STEP) -> Cause:
    return Cause(id=id, lost_s=lost_s, share=0.1, claim="It costs.", where=where)


def at_line(line: int) -> Place:
    return Place(f"src/train.py({line}): step", STEP.operator, STEP.call)


def changes(before: TraceSummary, after: TraceSummary) -> list[tuple[str, float, float]]:
    return [(each.id, each.before_s, each.after_s) for each in difference(before, after).changes]


def test_times_are_of_a_step_where_both_know_their_steps():
    found = difference(summary(cause(), num_steps=3), summary(cause(lost_s=0.04), window_s=0.2, num_steps=4))
    assert found.per == "step"
    assert (found.before_s, found.after_s) == pytest.approx((0.1, 0.05))
    assert (found.changes[0].before_s, found.changes[0].after_s) == pytest.approx((0.01, 0.01))


def test_times_are_of_the_window_where_one_does_not_know_its_steps():
    found = difference(summary(cause(), num_steps=3), summary(cause(lost_s=0.04), num_steps=None))
    assert found.per == "window"
    assert (found.before_s, found.after_s) == (0.3, 0.3)
    assert (found.changes[0].before_s, found.changes[0].after_s) == (0.03, 0.04)
    assert "whether they hold the same work is not known" in found.verdict


def test_a_cause_of_one_trace_alone_counts_nothing_in_the_other():
    before, after = (
        summary(cause("loader-bound"), num_steps=None),
        summary(cause("h2d-blocking"), num_steps=None),
    )
    assert changes(before, after) == [("h2d-blocking", 0.0, 0.03), ("loader-bound", 0.03, 0.0)]


def test_the_largest_change_stands_first():
    before = summary(cause("a", 0.01), cause("b", 0.05), cause("c", 0.02), num_steps=None)
    after = summary(cause("a", 0.015), cause("b", 0.051), cause("c", 0.0), num_steps=None)
    assert [id for id, _, _ in changes(before, after)] == ["c", "a", "b"]


def test_causes_of_one_id_at_two_places_are_two():
    here, there = cause(where=STEP), cause(where=Place("src/model.py(7): forward"), lost_s=0.01)
    before, after = summary(here, there, num_steps=None), summary(there, here, num_steps=None)
    assert [each.where for each in difference(before, after).changes] == [there.where, STEP]
    assert all(b == a for _, b, a in changes(before, after))


def test_a_place_whose_line_moved_is_the_same_place_and_the_new_line_is_told():
    found = difference(summary(cause()), summary(cause(where=at_line(35))))
    assert len(found.changes) == 1
    assert found.changes[0].where == at_line(35)


def test_a_line_that_stayed_is_not_mistaken_for_one_that_moved():
    before = summary(cause(where=at_line(31)), cause(where=at_line(40), lost_s=0.01), num_steps=None)
    after = summary(cause(where=at_line(40), lost_s=0.02), num_steps=None)
    assert sorted(changes(before, after)) == [("sync-per-step", 0.01, 0.02), ("sync-per-step", 0.03, 0.0)]


def test_a_trace_without_stacks_meets_one_with_them_by_the_id():
    before, after = summary(cause()), summary(cause(where=Place("", "aten::item", "cudaStreamSynchronize")))
    assert len(difference(before, after).changes) == 1
    assert len(difference(after, before).changes) == 1
    elsewhere = summary(cause(where=Place("src/other.py(3): log")))
    assert len(difference(before, elsewhere).changes) == 2


def test_a_cause_of_several_ranks_at_one_place_is_summed():
    before = summary(cause(lost_s=0.01), cause(lost_s=0.02), num_steps=None)
    assert changes(before, summary(num_steps=None)) == [("sync-per-step", pytest.approx(0.03), 0.0)]


def test_the_verdict_is_one_sentence_with_both_times_the_largest_change_and_its_worth():
    after = summary(cause(lost_s=0.003), window_s=0.24)
    assert difference(summary(cause()), after).verdict == (
        "A step took 100 ms before and 80 ms after (−20.0%); the largest change is in sync-per-step at "
        "train.py:31 step, 10 ms before and 1 ms after; one recording of each proves nothing, "
        "`dynotune compare` measures in pairs."
    )


def test_a_cause_that_went_away_is_not_said_to_cost_nothing():
    assert "10 ms before and not seen after;" in difference(summary(cause()), summary()).verdict


def test_every_verdict_names_what_would_prove_it():
    for before, after in ((summary(), summary()), (summary(num_steps=None), summary())):
        verdict = difference(before, after).verdict
        assert "proves nothing, `dynotune compare`" in verdict
        assert "largest change" not in verdict


@pytest.mark.parametrize(
    ("before_s", "after_s", "which"),
    [(None, None, "Neither trace"), (None, 0.3, "The trace before"), (0.3, None, "The trace after")],
)
def test_a_trace_without_durations_is_said_to_be_one(before_s, after_s, which):
    found = difference(summary(window_s=before_s, num_steps=None), summary(window_s=after_s, num_steps=None))
    assert which in found.verdict
    assert (found.before_s, found.after_s) == (before_s, after_s)


CAUSES = st.lists(
    st.builds(
        cause,
        id=st.sampled_from(["a", "b"]),
        lost_s=st.floats(0, 1),
        where=st.sampled_from([Place(), STEP, at_line(4), at_line(5), Place("", "aten::item")]),
    ),
    max_size=6,
)


@given(CAUSES, CAUSES)
def test_no_time_is_lost_or_counted_twice_and_the_way_back_is_the_reverse(before, after):
    one, other = summary(*before, num_steps=None), summary(*after, num_steps=None)
    there, back = changes(one, other), changes(other, one)
    assert sum(b for _, b, _ in there) == pytest.approx(sum(each.lost_s for each in before))
    assert sum(a for _, _, a in there) == pytest.approx(sum(each.lost_s for each in after))
    assert sorted((id, a, b) for id, b, a in there) == sorted(back)


@given(CAUSES)
def test_a_trace_does_not_differ_from_itself(causes):
    one = summary(*causes)
    assert all(b == a for _, b, a in changes(one, one))
