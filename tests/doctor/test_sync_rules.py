"""Rules on synchronisation: each fires, is silent, and says what it lacks."""

from __future__ import annotations

import pytest

from dynotune.schema.facts import Unknown
from dynotune.schema.trace_summary import Calls, Place

from .observations import attribution, loss, observed, timing
from .test_loader_rules import found, lacks
from .test_transfer_rules import _model, copies, trace

ITEM = Place("train.py(31): step", "aten::item", "cudaStreamSynchronize")


def synchronises(*losses, without=None, **fields):
    attributed = attribution(*losses, without=without)
    return observed(timed=timing(), attributed=attributed, trace=trace(**fields), rss_growth_bytes=0)


def test_a_wait_in_each_step_names_what_waits():
    other = loss(
        "sync-per-step", 0.05, where=Place("train.py(40): log", "aten::nonzero", "cudaStreamSynchronize")
    )
    finding = found(synchronises(loss("sync-per-step", 0.2, where=ITEM), other))["sync-per-step"]
    assert (finding.share, finding.severity, finding.where) == (0.25, "high", ITEM)
    assert "only once in many steps" in finding.remedy
    assert any("aten::nonzero in train.py(40): log" in line for line in finding.evidence)


def test_a_wait_costs_what_a_step_without_it_saves_and_the_copy_of_what_is_read():
    losses = loss("sync-per-step", 0.05, where=ITEM), loss("d2h-not-overlapped", 0.04, where=ITEM)
    values = copies(True, kind="DtoH", num=100, num_bytes=400)
    finding = found(synchronises(*losses, without={"sync-per-step": 0.3}, copies=[values]))["sync-per-step"]
    assert finding.share == pytest.approx(0.34)
    large = copies(True, kind="DtoH", num=10, num_bytes=10 << 20)
    finding = found(synchronises(*losses, without={"sync-per-step": 0.3}, copies=[large]))["sync-per-step"]
    assert finding.share == pytest.approx(0.3)
    assert "sync-per-step" not in found(synchronises(without={"sync-per-step": 0.3}))


@pytest.mark.parametrize(
    ("place", "word"),
    [
        (Place("", "aten::nonzero"), "torch.where"),
        (Place("", "aten::to"), "non_blocking"),
        (Place("", "", "cudaDeviceSynchronize"), "CUDA events"),
        (Place(), "out of the loop"),
    ],
)
def test_the_remedy_is_that_of_the_operator_that_waits(place, word):
    assert word in found(synchronises(loss("sync-per-step", 0.2, where=place)))["sync-per-step"].remedy


def test_waits_that_empty_no_queue_are_no_finding():
    assert found(synchronises()) == {}
    assert found(synchronises(loss("sync-per-step", 0.005))) == {}


def test_waits_are_unknown_without_an_attribution():
    lacking = observed(timed=timing(), models=[_model("cuda:0")])
    assert lacks(lacking, "sync-per-step") == ["where a step goes"]


UNSYNCED = Calls(
    rank=None, call="cudaMemcpyAsync", num=10, total_s=0.1, where=Place("train.py(31): step", "aten::to")
)


def test_a_copy_that_is_read_before_it_has_arrived():
    finding = found(synchronises(copies=[copies(True, kind="DtoH")], unsynced=[UNSYNCED]))[
        "d2h-nonblocking-unsynced"
    ]
    assert (finding.kind, finding.severity, finding.where) == ("correctness", "high", UNSYNCED.where)
    assert isinstance(finding.share, Unknown)


def test_the_process_itself_may_have_seen_it():
    live = {"live.unsynced_reads": ["train.py:31"]}
    seen = observed(timed=timing(), attributed=attribution(), trace=trace(), live=live)
    assert found(seen)["d2h-nonblocking-unsynced"].where.function == "train.py:31"
    quiet = observed(
        timed=timing(), attributed=attribution(), trace=trace(), live={"live.unsynced_reads": []}
    )
    assert "d2h-nonblocking-unsynced" not in found(quiet)


def test_copies_that_were_waited_for_are_no_fault():
    assert "d2h-nonblocking-unsynced" not in found(synchronises(copies=[copies(True, kind="DtoH")]))


def test_reading_too_early_is_unknown_without_a_trace():
    assert lacks(observed(models=[_model("cuda:0")]), "d2h-nonblocking-unsynced") == ["the trace"]
