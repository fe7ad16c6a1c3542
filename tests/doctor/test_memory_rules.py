"""Rules on memory: each fires, is silent, and says what it lacks."""

from __future__ import annotations

from typing import Any

import pytest

from dynotune.schema.allocator import Allocator
from dynotune.schema.attribution import LostTime
from dynotune.schema.facts import Unknown
from dynotune.schema.observation import Observation
from dynotune.schema.timing import SlowStep
from dynotune.schema.trace_summary import Place

from .observations import attribution, loss, observed, timing
from .test_loader_rules import found, lacks, settings
from .test_transfer_rules import _model, trace

GB = 10**9


def allocator(**fields: Any) -> Allocator:
    """80 GB, of which 10 are reserved and 9 were allocated."""
    usual: dict[str, Any] = {
        "device": "cuda:0", "total_bytes": 80 * GB, "allocated_bytes": 5 * GB, "allocated_growth_bytes": 0,
        "reserved_bytes": 10 * GB, "peak_allocated_bytes": 9 * GB,
        "peak_reserved_bytes": 10 * GB, "num_alloc_retries": 0, "num_ooms": 0, "num_device_allocations": 0,
        "num_device_frees": 0,
    }  # fmt: skip
    return Allocator(**(usual | fields))


def holds(*losses: LostTime, facts: Any = None, allocators: Any = None, **process: Any) -> Observation:
    """50 steps, 5 s."""
    given = [allocator()] if allocators is None else allocators
    fields = {"timed": timing(), "rss_growth_bytes": 0, "allocators": given} | process
    return observed(facts=facts or {}, attributed=attribution(*losses), trace=trace(), **fields)


def test_a_usual_program_has_no_finding():
    assert found(holds()) == {}


def test_emptying_the_cache_in_the_loop():
    live = {"live.empty_cache_calls": 50, "live.empty_cache_place": "train.py:20"}
    finding = found(holds(loss("empty-cache-in-loop", 0.2), live=live))["empty-cache-in-loop"]
    assert (finding.share, finding.where) == (0.2, Place("train.py:20"))
    assert found(holds(loss("empty-cache-in-loop", 0.2)))["empty-cache-in-loop"].severity == "high"
    unseen = found(holds(live=live))["empty-cache-in-loop"]
    assert (unseen.severity, isinstance(unseen.share, Unknown)) == ("low", True)


def test_emptying_finding_takes_in_the_retries_that_it_brings():
    live = {"live.empty_cache_calls": 50, "live.empty_cache_place": ""}
    (finding,) = found(holds(loss("alloc-retries", 0.2), live=live)).values()
    assert (finding.id, finding.also, finding.share) == ("empty-cache-in-loop", ["alloc-retries"], 0.2)


def test_emptying_now_and_then_costs_what_the_slow_steps_lose():
    steps = timing(
        slow=[SlowStep(index=4, step_s=0.6, wait_s=0.0, causes=["allocation"])], typical_step_s=0.1
    )
    live = {"live.empty_cache_calls": 12, "live.empty_cache_place": ""}
    (finding,) = found(holds(loss("empty-cache-in-loop", 0.02), live=live, timed=steps)).values()
    assert (finding.id, finding.also) == ("empty-cache-in-loop", ["alloc-jitter"])
    assert finding.share == pytest.approx(0.1)
    assert "empty-cache-in-loop" not in found(holds(live=live | {"live.empty_cache_calls": 0}, timed=steps))


@pytest.mark.parametrize("calls", [0, 1])
def test_emptying_the_cache_once_is_no_finding(calls):
    assert found(holds(live={"live.empty_cache_calls": calls})) == {}


def test_emptying_is_unknown_without_an_attribution():
    assert lacks(observed(models=[_model("cuda:0")]), "empty-cache-in-loop") == ["where a step goes"]


def test_an_allocator_that_runs_out_and_tries_again():
    tries = allocator(num_alloc_retries=3, num_device_frees=40, num_device_allocations=40)
    finding = found(holds(allocators=[tries]))["alloc-retries"]
    assert (finding.severity, isinstance(finding.share, Unknown)) == ("medium", True)
    assert settings(finding) == ["alloc.expandable_segments=true", "alloc.garbage_collection_threshold=0.8"]
    assert found(holds(loss("alloc-retries", 0.2)))["alloc-retries"].share == 0.2


def test_memory_that_is_taken_and_given_back_though_nobody_empties_the_cache():
    lost = loss("empty-cache-in-loop", 0.2), loss("host-bound", 0.1)
    (finding,) = found(holds(*lost, live={"live.empty_cache_calls": 0})).values()
    assert (finding.id, finding.share) == ("alloc-retries", 0.2)


def test_a_setting_that_is_there_already_is_no_candidate():
    tries = allocator(num_alloc_retries=3)
    facts = {"env.PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    finding = found(holds(allocators=[tries], facts=facts))["alloc-retries"]
    assert settings(finding) == ["alloc.garbage_collection_threshold=0.8"]


def test_the_allocator_is_unknown_where_it_did_not_tell():
    assert lacks(holds(allocators=[]), "alloc-retries") == ["counters of the allocator"]


def test_registering_host_memory_is_advised_when_allocating_pinned_memory_is_slow():
    finding = found(holds(loss("pinned-alloc-slow", 0.2)))["pinned-alloc-slow"]
    assert "alloc.pinned_use_cuda_host_register=true" in settings(finding)
    assert lacks(observed(models=[_model("cuda:0")]), "pinned-alloc-slow") == ["where a step goes"]
