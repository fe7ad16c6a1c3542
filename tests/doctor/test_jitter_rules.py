from __future__ import annotations

import msgspec
import pytest

from dynotune.doctor import Missing, ObservationView, all_rules
from dynotune.schema.diagnosis import Finding
from dynotune.schema.facts import Unknown
from dynotune.schema.host import Collections
from dynotune.schema.loader import Loader
from dynotune.schema.timing import SlowStep
from dynotune.schema.trace_summary import Place

from .observations import attribution, observed, timing

WHY = {
    "gc-jitter": "garbage",
    "alloc-jitter": "allocation",
    "recompile-jitter": "compilation",
    "loader-jitter": "loader",
}
HERE = Place("train.py(9): main")


def slow(*had: str, step_s: float = 0.3, index: int = 7) -> SlowStep:
    return SlowStep(index=index, step_s=step_s, wait_s=0.0, causes=list(had))


def ask(id_: str, timed, **process) -> list[Finding]:
    return list(all_rules()[id_](ObservationView(observed(timed=timed, **process))))


@pytest.mark.parametrize("id_", WHY)
def test_a_slow_step_is_laid_to_what_it_had(id_):
    steps = [slow(WHY[id_]), slow(WHY[id_], step_s=0.6)]
    (found,) = ask(id_, timing(slow=steps, typical_step_s=0.1))
    assert found.kind == "jitter"
    assert found.share == pytest.approx((0.2 + 0.5) / 5)
    assert found.severity == "high"
    assert "6.0 times" in found.claim
    assert found.evidence[0].startswith("600 ms, 300 ms")


@pytest.mark.parametrize("id_", WHY)
def test_steps_that_are_hardly_slow_or_had_nothing_are_left_alone(id_):
    assert not ask(id_, timing(slow=[slow(WHY[id_], step_s=0.12), slow()], typical_step_s=0.1))


@pytest.mark.parametrize("id_", [*WHY, "epoch-jitter"])
def test_without_timing_it_is_unknown(id_):
    with pytest.raises(Missing):
        ask(id_, Unknown("it was not timed"))


def test_of_several_things_that_a_step_had_one_counts():
    timed = timing(slow=[slow("loader", "garbage", "compilation")], typical_step_s=0.1)
    assert ask("recompile-jitter", timed)
    assert not ask("gc-jitter", timed)
    assert not ask("loader-jitter", timed)


def test_all_collections_of_the_window_count_where_they_were_timed():
    often = Collections(num=30, num_oldest=20, total_s=2.0, longest_s=0.1)
    (found,) = ask("gc-jitter", timing(), collections=often)
    assert (found.share, found.severity) == (pytest.approx(2.0 / 5), "high")
    assert "40%" in found.claim
    assert not ask(
        "gc-jitter", timing(), collections=Collections(num=9, num_oldest=0, total_s=0.03, longest_s=0.01)
    )
    # The slow step was slow for another reason.
    quick = Collections(num=3, num_oldest=1, total_s=0.003, longest_s=0.002)
    assert not ask("gc-jitter", timing(slow=[slow("garbage")], typical_step_s=0.1), collections=quick)


def test_one_long_collection_says_that_it_can_happen_and_not_how_often():
    once = Collections(num=8, num_oldest=1, total_s=0.35, longest_s=0.33)
    (found,) = ask("gc-jitter", timing(), collections=once)
    assert (found.share, found.severity, found.kind) == (pytest.approx(0.35 / 5), "low", "jitter")
    assert "330 ms" in found.claim
    again = Collections(num=8, num_oldest=2, total_s=0.65, longest_s=0.33)
    assert ask("gc-jitter", timing(), collections=again)[0].severity == "high"


def test_a_device_that_has_work_queued_does_not_wait_for_the_collector():
    often = Collections(num=30, num_oldest=20, total_s=2.0, longest_s=0.1)
    busy = attribution(busy_share=0.9, host=0.06, input=0.02, other=0.02)
    (found,) = ask("gc-jitter", timing(), collections=often, attributed=busy)
    assert found.share == pytest.approx(0.1)


@pytest.mark.parametrize("id_", [*WHY, "epoch-jitter"])
def test_a_slow_step_costs_no_more_than_the_device_waits(id_):
    timed = timing(slow=[slow(WHY.get(id_, ""))], typical_step_s=0.1, epoch_begin_s=0.4, num_epochs=5)
    (found,) = ask(id_, timed, attributed=attribution(busy_share=0.98, host=0.02))
    assert found.share == pytest.approx(0.02)


def test_the_longest_collection_is_told_where_it_is_known():
    timed = timing(slow=[slow("garbage")], typical_step_s=0.1)
    told = Collections(num=3, num_oldest=1, total_s=0.2, longest_s=0.15)
    assert "the longest collection took 150 ms" in ask("gc-jitter", timed, collections=told)[0].evidence


def test_collections_that_the_program_asks_for_have_the_place_of_the_call():
    asked = Collections(
        num=50, num_oldest=50, total_s=1.0, longest_s=0.03, asked_s=0.9, asked_at="train.py(73): main"
    )
    (finding,) = ask("gc-jitter", timing(), collections=asked)
    assert finding.claim == "Garbage collections that the program asks for take 18% of the time."
    assert finding.where == Place("train.py(73): main") and "Remove the call" in finding.remedy
    few = msgspec.structs.replace(asked, asked_s=0.3)
    (finding,) = ask("gc-jitter", timing(), collections=few)
    assert finding.where == Place() and "gc.freeze" in finding.remedy


def test_a_slow_begin_of_epochs_is_laid_to_workers_that_start_anew():
    timed = timing(epoch_begin_s=1.1, num_epochs=2, typical_step_s=0.1)
    loader = Loader(name="DataLoader", dataset="x", num_workers=2, place=HERE)
    (found,) = ask("epoch-jitter", timed, loaders=[loader])
    assert found.share == pytest.approx(2 * 1.0 / 5)
    assert [str(setting) for setting in found.candidates] == ["loader.persistent_workers=true"]
    assert found.where == HERE
    (found,) = ask("epoch-jitter", timed)
    assert not found.candidates
    assert found.remedy


def test_an_epoch_that_begins_like_any_step_or_never_did_is_silent():
    assert not ask("epoch-jitter", timing(epoch_begin_s=0.12, num_epochs=2, typical_step_s=0.1))
    assert not ask("epoch-jitter", timing(epoch_begin_s=None))
    assert not ask("epoch-jitter", timing(epoch_begin_s=0.16, num_epochs=0, typical_step_s=0.1))


def test_late_batches_of_workers_are_worth_more_prefetching():
    timed = timing(slow=[slow("loader")], typical_step_s=0.1)
    loader = Loader(name="DataLoader", dataset="x", num_workers=2, prefetch_factor=3, place=HERE)
    (found,) = ask("loader-jitter", timed, loaders=[loader])
    assert [str(setting) for setting in found.candidates] == ["loader.prefetch_factor=6"]
    assert not ask("loader-jitter", timed)[0].candidates
