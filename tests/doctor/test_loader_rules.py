"""Rules on input: each fires, is silent, and says what it lacks."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dynotune.doctor import ObservationView, all_rules, examine
from dynotune.knobs import get, parse
from dynotune.schema.compilation import Compilation
from dynotune.schema.facts import Unknown
from dynotune.schema.loader import Loader, Loading, Padding, SamplePart
from dynotune.schema.model import Model
from dynotune.schema.observation import Observation
from dynotune.schema.setting import Setting
from dynotune.schema.tensor import Tensor
from dynotune.schema.timing import SlowStep
from dynotune.schema.trace_summary import Place

from .observations import attribution, loss, observed, timing

CORES: dict[str, Any] = {"host.num_cores": 8}
FAMILIES = ("loader", "batches", "transfer", "sync", "memory")


def loading(**fields: Any) -> Loading:
    """A batch of 40 ms, 20 of them processor time, in workers that are busy."""
    usual = {"num_batches": 50, "fetch_s": 0.04, "longest_s": 0.05, "cpu_s": 0.02, "busy_share": 0.98}
    return Loading(**(usual | fields))


def loader(num_workers: int = 2, **fields: Any) -> Loader:
    usual: dict[str, Any] = {
        "name": "DataLoader",
        "dataset": "__main__.Data",
        "num_workers": num_workers,
        "batch_size": 8,
        "num_drawn": 50,
        "prefetch_factor": 2 if num_workers else None,
        "context": "fork" if num_workers else None,
        "place": Place("train.py(9): main"),
        "loading": loading(busy_share=0.98 if num_workers else None),
    }
    return Loader(**(usual | fields))


def waits(share: float, *loaders: Loader, facts: Any = None, **fields: Any) -> Observation:
    """A program that waits for its loader for this share of a step."""
    timed = fields.pop("timed", timing(wait_s=0.1 * share))
    known = attribution(loss("loader-bound", share, where=Place("train.py(12): main")), input=share)
    return observed(
        facts=CORES if facts is None else facts,
        timed=timed,
        attributed=known,
        loaders=[*loaders],
        rss_growth_bytes=0,
        **fields,
    )


def found(observation: Observation) -> dict[str, Any]:
    """Findings of these families' rules by id; what they explain is gone."""
    ours = {id_ for id_, rule in all_rules().items() if rule.family in FAMILIES}
    return {
        finding.id: finding
        for finding in examine(ObservationView(observation), "program")[0]
        if finding.id in ours
    }


def lacks(observation: Observation, id_: str) -> list[str]:
    """What a rule says that it lacks."""
    return [one.missing for one in examine(ObservationView(observation), "program")[1] if one.id == id_]


def settings(finding: Any) -> list[str]:
    """Candidates as text; each is one that `compare` would take."""
    for candidate in finding.candidates:
        assert parse(str(candidate)) == candidate
        assert get(candidate.knob)
    return [str(candidate) for candidate in finding.candidates]


def test_waiting_for_busy_workers_asks_for_more_of_them():
    finding = found(waits(0.5, loader(2)))["loader-bound"]
    assert (finding.severity, finding.share) == ("high", 0.5)
    assert finding.where == Place("train.py(12): main")
    assert settings(finding) == ["loader.num_workers=4", "loader.num_workers=8"]


def test_workers_are_never_asked_for_beyond_the_cores_of_a_rank():
    assert settings(found(waits(0.5, loader(2), facts={"host.num_cores": 3}))["loader-bound"]) == [
        "loader.num_workers=3"
    ]
    assert settings(found(waits(0.5, loader(2), facts={"host.num_cores": 2}))["loader-bound"]) == []


def test_workers_that_mostly_wait_are_asked_for_beyond_the_cores_of_a_rank_that_are_idle():
    idle = {"host.num_cores": 2, "window.tree_cpu_s_per_s": 0.9}
    waiting = loader(2, loading=loading(fetch_s=0.055, cpu_s=0.02))
    assert settings(found(waits(0.5, waiting, facts=idle))["loader-bound"]) == [
        "loader.num_workers=4", "loader.num_workers=5",
    ]  # fmt: skip
    busy = idle | {"window.tree_cpu_s_per_s": 1.5}
    assert settings(found(waits(0.5, waiting, facts=busy))["loader-bound"]) == []
    computing = loader(2, loading=loading(fetch_s=0.055, cpu_s=0.054))
    assert settings(found(waits(0.5, computing, facts=idle))["loader-bound"]) == []


def test_more_workers_are_not_asked_for_than_have_room_in_shared_memory():
    facts = {"host.num_cores": 64, "host.shm_free_bytes": 64 << 20}
    images = Tensor(shape=[64, 3, 128, 128], dtype="float32", device="cpu", num_bytes=4 << 20)
    heavy = loader(2, batch=[images], prefetch_factor=2)
    assert settings(found(waits(0.8, heavy, facts=facts))["loader-bound"]) == ["loader.num_workers=4"]


def test_more_workers_are_not_asked_for_where_those_there_have_time_left():
    finding = found(waits(0.5, loader(2, loading=loading(busy_share=0.4))))["loader-bound"]
    assert finding.candidates == [Setting("loader.num_workers", 0)]
    assert "Handing batches over" in finding.remedy


def test_workers_that_rest_while_the_program_saves_may_be_too_few_for_its_steps():
    rests = loader(2, loading=loading(fetch_s=0.06, longest_s=0.08, busy_share=0.67))
    uneven = timing(step_s=0.05, typical_step_s=0.02, wait_s=0.007)
    finding = found(waits(0.14, rests, timed=uneven))["loader-bound"]
    assert "more workers" in finding.remedy
    assert settings(finding) == ["loader.num_workers=3", "loader.num_workers=6"]


def test_workers_that_take_longer_to_hand_over_than_to_make_are_too_many():
    tiny = loader(2, loading=loading(fetch_s=0.001, busy_share=0.02))
    assert settings(found(waits(0.5, tiny))["loader-bound"]) == ["loader.num_workers=0"]


def test_a_wait_as_short_as_handing_over_is_of_low_severity():
    assert found(waits(0.1, loader(0), timed=timing(step_s=0.004)))["loader-bound"].severity == "low"
    assert found(waits(0.1, loader(0), timed=timing(step_s=0.04)))["num-workers-zero"].severity == "medium"


def test_a_loader_that_shares_all_cores_with_the_operators_is_of_low_severity():
    used_up = {"host.num_cores": 4, "window.tree_cpu_s_per_s": 3.9}
    assert found(waits(0.2, loader(2), facts=used_up))["loader-bound"].severity == "low"
    with_room = used_up | {"window.tree_cpu_s_per_s": 2.0}
    assert found(waits(0.2, loader(2), facts=with_room))["loader-bound"].severity == "high"


def test_batches_that_are_always_ready_are_waited_for_as_they_are_handed_over():
    resting = loader(2, loading=loading(fetch_s=0.006, longest_s=0.008, busy_share=0.03))
    handed_over = found(waits(0.08, resting))["loader-bound"]
    # The process would take 6 of 8 ms to make a batch itself.
    assert (handed_over.share, handed_over.severity) == (0.08, "low")
    assert found(waits(0.12, resting))["loader-bound"].severity == "medium"
    late = loader(2, loading=loading(fetch_s=0.006, longest_s=0.3, busy_share=0.03))
    assert found(waits(0.08, late))["prefetch-factor"].also == ["loader-bound"]
    pinned = loader(2, loading=loading(fetch_s=0.006, longest_s=0.008, busy_share=0.03, pin_s=0.09))
    assert found(waits(0.08, pinned))["loader-bound"].severity == "medium"


def test_workers_that_rest_while_a_step_stalls_may_be_late_in_the_others():
    rest = loader(1, loading=loading(fetch_s=0.02, longest_s=0.03, busy_share=0.3))
    stalls = timing(step_s=0.07, typical_step_s=0.03, wait_s=0.005)
    assert found(waits(0.07, rest, timed=stalls))["loader-bound"].severity == "medium"
    assert found(waits(0.07, rest, timed=timing(step_s=0.07, wait_s=0.005)))["loader-bound"].severity == "low"


def test_a_wait_of_half_a_hundredth_is_no_finding():
    assert found(waits(0.005, loader(0), loader(2))) == {}


def test_a_small_wait_is_of_low_severity():
    assert {
        finding.severity for finding in found(waits(0.02, loader(0), timed=timing(step_s=1.0))).values()
    } == {"low"}


def test_a_wait_is_unknown_without_an_attribution():
    lacking = observed(loaders=[loader(0)], timed=timing())
    for id_ in ("loader-bound", "num-workers-zero", "prefetch-factor", "collate-heavy", "decode-bound"):
        asked = lacking if id_ != "prefetch-factor" else observed(loaders=[loader(2)], timed=timing())
        assert lacks(asked, id_) == ["where a step goes"], id_


def test_loading_in_the_training_process_takes_the_place_of_the_wait():
    finding = found(waits(0.6, loader(0)))["num-workers-zero"]
    assert finding.also == ["loader-bound"]
    # Handing a batch over takes half a millisecond of 100.
    assert finding.share == pytest.approx(0.595)
    assert settings(finding) == ["loader.num_workers=3", "loader.num_workers=6"]


def test_workers_cannot_hide_processor_time_that_the_cores_do_not_have():
    busy = loader(0, loading=loading(cpu_s=0.04, busy_share=None))
    one = found(waits(0.6, busy, facts={"host.num_cores": 1}))
    assert "num-workers-zero" not in one
    assert one["loader-bound"].share == 0.6
    two = found(waits(0.6, busy, facts={"host.num_cores": 2}))["num-workers-zero"]
    assert two.share == pytest.approx(0.5)


def test_an_iterable_data_set_must_split_itself_before_it_gets_workers():
    finding = found(waits(0.6, loader(0, is_iterable=True)))["num-workers-zero"]
    assert finding.candidates == []
    assert "get_worker_info" in finding.remedy
    splits = loader(0, is_iterable=True, splits_by_worker=True, loading=loading(busy_share=None))
    assert settings(found(waits(0.6, splits))["num-workers-zero"])


@pytest.mark.parametrize("splits", [True, False])
def test_an_iterable_data_set_that_gives_all_to_each_worker_gets_no_more_of_them(splits):
    behind = loader(2, is_iterable=True, splits_by_worker=splits, loading=loading(busy_share=0.98))
    finding = found(waits(0.6, behind))["loader-bound"]
    assert bool(settings(finding)) == splits
    assert ("get_worker_info" in finding.remedy) != splits


def test_loading_in_the_process_is_unknown_without_the_number_of_cores():
    assert lacks(waits(0.6, loader(0), facts={}), "num-workers-zero") == ["host.num_cores"]


CROWDED: dict[str, Any] = {"host.num_cores": 2, "window.tree_cpu_s_per_s": 1.96}


def crowded(waited: float = 0.66, samples_per_s: float | None = 80.0, **made: Any) -> Observation:
    """A model on the CPU, two workers that compute 60 ms of each step's 100 and are ahead, and two cores."""
    usual = {"fetch_s": 0.11, "longest_s": 0.13, "cpu_s": 0.06, "busy_share": 0.58, "collate_s": 0.0}
    return waits(
        0.05,
        loader(2, loading=loading(**(usual | made))),
        facts=CROWDED,
        live={"live.core_wait_s_per_s": waited},
        timed=timing(wait_s=0.005, samples_per_s=samples_per_s),
    )


def test_workers_that_take_cores_from_operators_cost_what_they_compute_at_most():
    finding = found(crowded())["loader-bound"]
    assert (finding.severity, finding.share) == ("high", pytest.approx(0.6))
    assert "wait for cores that workers use" in finding.claim
    assert found(crowded(waited=0.3))["loader-bound"].share == pytest.approx(0.3)
    # Nobody waits for a core, or hardly anything is computed: what is waited for is the loader, or nothing.
    for quiet in (crowded(waited=0.1), crowded(cpu_s=0.01), crowded(samples_per_s=None)):
        assert "waits 5% of its time" in found(quiet)["loader-bound"].claim


def test_too_many_workers_that_take_cores_from_operators_explain_that():
    made = loading(fetch_s=0.11, longest_s=0.13, cpu_s=0.06, busy_share=0.2)
    timed, live = timing(wait_s=0.005, samples_per_s=80.0), {"live.core_wait_s_per_s": 0.66}
    finding = found(waits(0.05, loader(4, loading=made), facts=CROWDED, live=live, timed=timed))
    assert finding["num-workers-too-many"].share == pytest.approx(0.6)
    assert finding["num-workers-too-many"].also == ["loader-bound"]


def test_collating_in_workers_that_take_cores_from_operators_is_named():
    finding = found(crowded(collate_s=0.11))["collate-heavy"]
    assert (finding.severity, finding.also) == ("high", ["loader-bound"])
    assert finding.share == pytest.approx(0.6)


def test_more_workers_than_cores():
    finding = found(waits(0.2, loader(16)))["num-workers-too-many"]
    assert (finding.severity, finding.share, finding.also) == ("high", 0.2, ["loader-bound"])
    assert settings(finding) == ["loader.num_workers=8", "loader.num_workers=4"]
    assert "num-workers-too-many" not in found(waits(0.2, loader(8)))


def test_more_workers_than_cores_make_batches_late():
    late = SlowStep(index=3, step_s=1.5, wait_s=1.4, causes=["loader"])
    timed = timing(slow=[late], typical_step_s=0.1)
    finding = found(waits(0.4, loader(16), timed=timed))["num-workers-too-many"]
    assert finding.also == ["loader-bound", "loader-jitter"]


def test_too_many_workers_that_cost_no_wait_are_of_low_severity():
    finding = found(waits(0.0, loader(16)))["num-workers-too-many"]
    assert finding.severity == "low"
    assert isinstance(finding.share, Unknown)


def test_workers_that_wait_for_a_disk_may_outnumber_the_cores():
    idle = loader(16, loading=loading(cpu_s=0.001))
    assert "num-workers-too-many" not in found(
        waits(0.2, idle, facts=CORES | {"window.tree_cpu_s_per_s": 1.0})
    )
    assert "num-workers-too-many" in found(waits(0.2, idle, facts=CORES | {"window.tree_cpu_s_per_s": 7.9}))


@pytest.mark.parametrize(
    ("busy_share", "num_workers", "is_told"), [(0.02, 16, False), (0.4, 16, False), (0.5, 16, True)]
)
def test_too_many_workers_are_told_when_they_leave_no_core_to_the_program(busy_share, num_workers, is_told):
    at_work = loader(num_workers, loading=loading(fetch_s=0.001, busy_share=busy_share))
    findings = found(waits(0.2, at_work))
    assert ("num-workers-too-many" in findings) is is_told
    if not is_told:
        # Batches are ready, so it is their handing over that is waited for.
        assert settings(findings["loader-bound"]) == ["loader.num_workers=0"] or busy_share > 0.1


def test_too_many_workers_finding_proposes_none_when_making_a_batch_is_shorter_than_the_wait():
    quick = loader(16, loading=loading(fetch_s=0.005, cpu_s=0.004))
    finding = found(waits(0.2, quick))["num-workers-too-many"]
    assert settings(finding)[0] == "loader.num_workers=0"


def test_the_number_of_workers_is_not_judged_without_that_of_the_cores():
    assert lacks(waits(0.2, loader(16), facts={}), "num-workers-too-many") == ["host.num_cores"]


EPOCHS = timing(
    num_epochs=5, epoch_begin_s=0.55, typical_step_s=0.1
)  # 5 s: five times 450 ms, less a batch of 40


def test_starting_workers_for_each_epoch():
    finding = found(waits(0.0, loader(4), timed=EPOCHS))["persistent-workers"]
    assert finding.share == pytest.approx(5 * 0.41 / 5)
    assert settings(finding) == ["loader.persistent_workers=true"]


def test_too_many_workers_finding_leaves_out_the_cost_of_epochs_starts():
    assert found(waits(0.6, loader(16), timed=EPOCHS))["num-workers-too-many"].share == pytest.approx(
        0.6 - 5 * 0.45 / 5
    )
    assert found(waits(0.4, loader(16), timed=EPOCHS))["num-workers-too-many"].severity == "low"


def test_batches_that_take_long_to_make_are_late_at_the_start_of_an_epoch_too():
    timed = timing(num_epochs=5, epoch_begin_s=0.25, typical_step_s=0.1)
    slow = loader(2, persistent_workers=True, loading=loading(fetch_s=0.15, collate_s=0.14, cpu_s=0.15))
    finding = found(waits(0.4, slow, timed=timed))["collate-heavy"]
    assert finding.also == ["loader-bound", "epoch-jitter"]


def test_loader_finding_leaves_out_the_cost_of_epochs_starts():
    both = found(waits(0.6, loader(4), timed=EPOCHS))
    # An epoch's first batch is late with workers that persist too, and no steady wait.
    assert both["persistent-workers"].share == pytest.approx(5 * 0.41 / 5)
    assert both["loader-bound"].share == pytest.approx(0.6 - 5 * 0.45 / 5)


@pytest.mark.parametrize("given", [loader(4, persistent_workers=True), loader(0)])
def test_epochs_cost_nothing_where_no_workers_begin(given):
    assert not {"persistent-workers", "mp-context"} & set(found(waits(0.0, given, timed=EPOCHS)))


@pytest.mark.parametrize(("num_batches", "says"), [(9, True), (8, False), (None, True)])
def test_a_loader_whose_iterator_goes_on_across_epochs_starts_no_workers_for_them(num_batches, says):
    """52 batches in the window, and five begins: at most six epochs, each begun anew, hold them or do not."""
    timed = timing(num_epochs=5, epoch_begin_s=0.55, typical_step_s=0.1, samples_per_s=8 * 52 / 5)
    given = loader(4, num_batches=num_batches, context="spawn")
    assert ({"persistent-workers", "mp-context"} <= set(found(waits(0.0, given, timed=timed)))) is says


def test_no_epoch_in_the_window_is_no_finding():
    assert found(waits(0.0, loader(4))) == {}


def test_the_start_of_epochs_is_unknown_without_a_timing():
    assert lacks(waits(0.0, loader(4), timed=Unknown("it ended")), "persistent-workers") == [
        "timing of the plain window"
    ]


def test_workers_that_begin_in_a_fresh_interpreter():
    both = found(waits(0.0, loader(4, context="spawn"), timed=EPOCHS))
    assert settings(both["mp-context"]) == ["loader.multiprocessing_context=fork"]
    assert both["mp-context"].share < both["persistent-workers"].share
    assert "mp-context" not in found(waits(0.0, loader(4), timed=EPOCHS))


def test_uneven_batches_want_more_of_them_ahead():
    uneven = loader(2, loading=loading(busy_share=0.5, longest_s=0.4))
    finding = found(waits(0.1, uneven))["prefetch-factor"]
    assert (finding.share, finding.also) == (0.1, ["loader-bound"])
    assert settings(finding) == ["loader.prefetch_factor=4", "loader.prefetch_factor=8"]
    for other in (loading(busy_share=0.5), loading(longest_s=0.4)):
        assert "prefetch-factor" not in found(waits(0.1, loader(2, loading=other)))


def test_uneven_batches_want_no_more_ahead_where_operators_need_the_cores_themselves():
    uneven, used = (
        loader(2, loading=loading(busy_share=0.5, longest_s=0.4)),
        CORES | {"window.tree_cpu_s_per_s": 7.5},
    )
    assert "prefetch-factor" not in found(waits(0.1, uneven, facts=used))
    assert "prefetch-factor" in found(waits(0.1, uneven, facts=CORES | {"window.tree_cpu_s_per_s": 4.0}))


def test_uneven_batches_that_come_in_time_all_the_same_want_no_more_ahead():
    uneven = loader(1, loading=loading(fetch_s=0.01, longest_s=0.04, busy_share=0.06))
    waiting = waits(0.1, uneven)
    assert "prefetch-factor" not in found(waiting)
    assert found(waiting)["loader-bound"].share == 0.1


def test_unevenness_explains_no_more_than_a_batch_takes_on_average():
    uneven = loader(2, loading=loading(busy_share=0.5, longest_s=0.4))
    assert found(waits(0.6, uneven))["prefetch-factor"].share == pytest.approx(0.4)
    assert "prefetch-factor" not in found(waits(0.9, uneven))


def test_loader_rules_are_unknown_when_the_time_of_making_batches_is():
    lacking = waits(0.1, loader(2, loading=Unknown("not watched")))
    for id_ in ("prefetch-factor", "collate-heavy", "decode-bound", "cow-growth"):
        assert lacks(lacking, id_) == ["what making batches takes"], id_


def test_collating_takes_its_part_of_the_wait():
    heavy = loading(collate_s=0.03, busy_share=None, collate=Place("train.py(3): stack"))
    both = found(waits(0.4, loader(0, loading=heavy)))
    assert both["collate-heavy"].share == pytest.approx(0.3)
    assert both["collate-heavy"].where.function == "train.py(3): stack"
    assert "num-workers-zero" in both
    # Workers that are busy all the time make batches that much faster.
    assert found(waits(0.4, loader(2, loading=loading(collate_s=0.03))))["collate-heavy"].share == 0.4


@pytest.mark.parametrize(("id_", "part"), [("decode-bound", "decode_s"), ("collate-heavy", "collate_s")])
def test_batches_that_take_long_to_make_are_made_by_more_workers_too(id_, part):
    def named(busy_share):
        expensive = loading(**{part: 0.03}, busy_share=busy_share)
        return settings(found(waits(0.4, loader(4, loading=expensive)))[id_])

    # As where only the wait is known, and though a worker is not always at work.
    assert named(0.98) == named(0.8) == ["loader.num_workers=7", "loader.num_workers=8"]
    # Workers that rest: none is asked for, and what the wait is to be tried with alone is said here.
    assert named(0.6) == ["loader.num_workers=0"]


def test_of_a_loader_without_workers_another_rule_asks_for_some():
    expensive = loading(decode_s=0.03, busy_share=None)
    assert settings(found(waits(0.4, loader(0, loading=expensive)))["decode-bound"]) == []


def test_collating_that_takes_little_is_no_finding():
    assert "collate-heavy" not in found(waits(0.4, loader(2, loading=loading(collate_s=0.005))))
    assert "collate-heavy" not in found(waits(0.0, loader(2, loading=loading(collate_s=0.03))))
    # Workers that rest most of the time have it ready.
    assert "collate-heavy" not in found(
        waits(0.4, loader(2, loading=loading(collate_s=0.03, busy_share=0.2)))
    )


def test_decoding_takes_its_part_of_the_wait():
    resized = loading(decode_s=0.02, decoders=["PIL.Image.Image.convert", "PIL.Image.Image.resize"])
    assert "decoding and resizing" in found(waits(0.4, loader(2, loading=resized)))["decode-bound"].claim
    decoding = loading(decode_s=0.02, decoders=["PIL.ImageFile.ImageFile.load"])
    finding = found(waits(0.4, loader(2, loading=decoding)))["decode-bound"]
    assert finding.share == pytest.approx(0.4)
    assert finding.also == ["loader-bound"]
    assert "PIL" in finding.evidence[0]
    assert "decode-bound" not in found(waits(0.4, loader(2, loading=loading(decode_s=0.005))))


GROWING = {"num_objects": 2_000_000, "private_growth_bytes": 100 << 20, "private_over_s": 5.0}


def test_workers_that_copy_the_data_sets_objects():
    finding = found(waits(0.0, loader(4, loading=loading(**GROWING))))["cow-growth"]
    assert (finding.kind, finding.severity) == ("memory", "medium")
    slowly = GROWING | {"private_over_s": 60.0}
    assert found(waits(0.0, loader(4, loading=loading(**slowly))))["cow-growth"].severity == "low"


COPYING = GROWING | {"num_faults": 400.0, "system_s": 0.012, "fetch_s": 0.04, "busy_share": 1.0}
"""Four workers make 100 batches a second, in which they copy 51 pages each of 400 faults."""


def test_cow_growth_counts_the_time_of_copies_when_workers_are_behind():
    copying = COPYING | {"private_growth_bytes": 800 << 20}
    finding = found(waits(0.6, loader(4, loading=loading(**copying))))["cow-growth"]
    assert finding.kind == "speed"
    assert finding.share == pytest.approx(0.3)  # 12 of 40 ms, as all faults copy
    assert list(map(str, finding.candidates)) == [
        "loader.multiprocessing_context=forkserver",
        "loader.multiprocessing_context=spawn",
    ]


def test_cow_growth_counts_a_share_of_the_kernels_time_when_few_faults_copy():
    little = COPYING | {"system_s": 0.002}
    finding = found(waits(0.9, loader(4, loading=loading(**little))))["cow-growth"]
    assert (finding.kind, finding.candidates) == ("memory", [])
    assert "0.256 of the 40 ms" in finding.evidence[-1]


@pytest.mark.parametrize(
    "given",
    [
        loader(4, loading=loading(**GROWING), context="spawn"),
        loader(0, loading=loading(**GROWING)),
        loader(4, loading=loading(**GROWING | {"num_objects": 1000})),
        loader(4, loading=loading(**GROWING | {"private_growth_bytes": 1 << 20})),
        loader(4, loading=loading(**GROWING | {"num_objects": 100_000, "private_growth_bytes": 222_000_000})),
    ],
)
def test_workers_that_copy_nothing(given):
    assert "cow-growth" not in found(waits(0.0, given))


def test_growth_that_was_not_followed_is_a_low_finding():
    unfollowed = GROWING | {"private_growth_bytes": None}
    assert found(waits(0.0, loader(4, loading=loading(**unfollowed))))["cow-growth"].severity == "low"


def compiled(*recompilations: str) -> Compilation:
    return Compilation(
        num_graphs=1,
        num_graph_breaks=0,
        num_recompilations=len(recompilations),
        num_compilations_in_window=0,
        recompilations=[*recompilations],
    )


def test_a_last_batch_of_its_own_shape():
    cut = loader(2, drop_last=False, num_items=1001)
    reason = "tensor 'x' size mismatch at index 0. expected 8, actual 1"
    assert found(waits(0.0, cut, compilation=compiled(reason)))["last-batch-shape"].severity == "low"
    convolves = Model(
        name="Net", num_parameters=1, parameter_bytes=4, devices={"cuda:0": 1}, num_modules={"convolution": 2}
    )
    tuned = waits(0.0, cut, live={"live.cudnn_benchmark": True}, models=[convolves])
    assert "last-batch-shape" in found(tuned)
    assert "last-batch-shape" not in found(waits(0.0, cut))
    whole = loader(2, drop_last=False, num_items=1000)
    assert "last-batch-shape" not in found(waits(0.0, whole, compilation=compiled(reason)))


def test_a_program_without_a_loader_of_torchs_has_no_finding_of_its_arguments():
    assert set(found(waits(0.5))) == {"loader-bound"}


# What samples are made of


def test_workers_that_each_yield_all_of_a_data_set_are_found():
    doubled = loader(2, is_iterable=True, splits_by_worker=False)
    finding = found(waits(0.3, doubled))["iterable-duplicated"]
    assert (finding.kind, finding.severity) == ("correctness", "high")
    assert "get_worker_info" in finding.remedy
    for other in (
        loader(2, is_iterable=True, splits_by_worker=True),
        loader(1, splits_by_worker=False),
        loader(2),
    ):
        assert "iterable-duplicated" not in found(waits(0.3, other))


def test_loader_finding_has_a_samples_time_and_bytes_as_evidence():
    parts = [
        SamplePart(part="read", what="zip", num=80, wall_s=0.8),
        SamplePart(part="own", num=20, wall_s=0.2),
    ]
    told = loader(2, loading=loading(parts=parts, read_bytes=4e6, storage_bytes=1e6))
    evidence = "\n".join(found(waits(0.5, told))["loader-bound"].evidence)
    assert "80% read (zip)" in evidence and "4 MB, 25% of it from storage" in evidence


PADDED = Padding(by="attention_mask", num_batches=8, share=0.4, longest_share=0.38, sorted_share=0.02)


def padded(padding: Padding | None, **fields: Any) -> dict[str, Any]:
    return found(waits(0.0, loader(2, padding=padding, **fields)))


def test_padding_costs_its_part_of_the_models_time_at_most():
    finding = padded(PADDED)["padding-waste"]
    assert finding.share == pytest.approx(0.4)  # a device's share of 1 here
    assert "attention_mask" in finding.evidence[0]
    assert "padding-waste" not in padded(None) | padded(msgspec.structs.replace(PADDED, share=0.05))


@pytest.mark.parametrize(
    ("without", "host", "other", "share"),
    [
        # A device that hardly waits works on padding in proportion, also in the time that no part of a step
        # explains.
        (0.9, 0.02, 0.1, 0.4 * 0.98),
        # Without the device's work the host alone takes 0.48 of the step, which is more than what is not
        # padding takes.
        (0.52, 0.08, 0.0, 0.4 * 0.92),
        (0.3, 0.08, 0.0, 0.3),
    ],
)
def test_a_step_without_padding_takes_no_less_than_what_is_not_padding_and_no_less_than_the_host(
    without, host, other, share
):
    known = attribution(busy_share=1 - host, host=host, other=other, without={"device": without})
    observation = msgspec.structs.replace(waits(0.0, loader(2, padding=PADDED)), attribution=known)
    assert found(observation)["padding-waste"].share == pytest.approx(share)


def test_without_a_device_padding_costs_its_part_of_the_operators_at_most():
    known = attribution(host=0.2, other=0.3)
    observation = msgspec.structs.replace(waits(0.0, loader(2, padding=PADDED)), attribution=known)
    assert found(observation)["padding-waste"].share == pytest.approx(0.4 * 0.5)


@pytest.mark.parametrize(
    ("changes", "fields", "remedy", "num_settings"),
    [
        ({}, {}, "batch sampler", 1),
        ({}, {"is_iterable": True}, "sort some hundred", 0),
        ({}, {"collate": "transformers.data.data_collator.DataCollatorWithPadding"}, "group_by_length", 1),
        ({"longest_share": 0.1}, {}, "longest row", 0),
        ({"share": 0.8, "longest_share": 0.5}, {}, "longest row", 0),
        ({"sorted_share": 0.35}, {}, "Pack rows", 0),
    ],
)
def test_one_thing_is_advised_against_padding(changes, fields, remedy, num_settings):
    finding = padded(msgspec.structs.replace(PADDED, **changes), **fields)["padding-waste"]
    assert remedy in finding.remedy
    assert settings(finding) == ["loader.batches=by-length"] * num_settings
