"""Rules on ranks: each fires, is silent, and says what it lacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from dynotune.schema.cycle import CyclePart
from dynotune.schema.facts import Unknown
from dynotune.schema.host import Line, Thread
from dynotune.schema.observation import Observation
from dynotune.schema.trace_summary import (
    Communication,
    DeviceTime,
    HostTime,
    Loop,
    Place,
    Ranks,
    RankTime,
    Straggler,
)

from .devices import AT, CALLED, found, kernels, lacks, lost, model, on_cpu, on_gpu
from .observations import observed

DDP: dict[str, Any] = {
    "find_unused_parameters": False,
    "static_graph": False,
    "gradient_as_bucket_view": True,
    "bucket_cap_mb": 25,
}


def wrapped(device: str = "cuda:0", num_bytes: int = 4000, **told: Any) -> list[Any]:
    return [model(device, wrapper="DistributedDataParallel", parameter_bytes=num_bytes, ddp=DDP | told)]


def two_ranks(observation: Observation) -> Observation:
    assert not isinstance(observation.processes, Unknown)
    first = observation.processes[0]
    ranks = [msgspec.structs.replace(first, rank=rank, world_size=2) for rank in (0, 1)]
    return msgspec.structs.replace(observation, processes=ranks)


def device(index: int, busy_s: float) -> DeviceTime:
    return DeviceTime(
        rank=None,
        device=index,
        window_s=1.0,
        busy_s=busy_s,
        compute_s=busy_s,
        copy_s=0.0,
        communication_s=0.0,
        idle_s=1 - busy_s,
    )


# DataParallel


def test_dataparallel_costs_what_its_devices_idle():
    models = [model(wrapper="DataParallel")]
    finding = found(on_gpu(models=models, traced={"devices": [device(0, 0.6), device(1, 0.2)]}))[
        "dataparallel-used"
    ]
    assert (finding.share, finding.severity, finding.where) == (pytest.approx(0.6), "high", CALLED)
    assert "torchrun" in finding.remedy


def test_dataparallel_finding_takes_its_exchanges_share_to_itself():
    models = [model(wrapper="DataParallel")]
    busy = {"devices": [device(0, 1.0), device(1, 0.8)]}
    shares = {"communication": 0.4}
    finding = found(on_gpu(lost("communication-exposed", 0.4), models=models, traced=busy, shares=shares))
    assert "communication-exposed" not in finding
    assert finding["dataparallel-used"].share == pytest.approx(0.1 + 0.4)


def test_dataparallel_on_one_device_copies_nothing():
    models = [model(wrapper="DataParallel")]
    alone = {"devices": [device(0, 0.6)]}
    losing = on_gpu(lost("host-bound", 0.02), models=models, shares={"host": 0.02}, traced=alone)
    assert "dataparallel-used" not in found(losing)
    assert isinstance(found(observed(models=models))["dataparallel-used"].share, Unknown)


# DistributedDataParallel


def test_looking_for_unused_parameters_where_there_are_none():
    models = wrapped("cpu", find_unused_parameters=True, unused_parameters=0)
    traced = {"communication": [Communication(rank=None, num=20, total_s=1.0, exposed_s=1.0, hidden_s=0.0)]}
    finding = found(on_cpu(models=models, shares={"host": 0.1, "communication": 0.2}, traced=traced))
    # Ten microseconds for each of twenty parameters, and one of two exchanges a step.
    assert finding["ddp-find-unused-on"].share == pytest.approx(20 * 10e-6 / 0.1 + 0.2 / 2)
    waiting = on_gpu(
        lost("host-bound", 0.1),
        models=wrapped(find_unused_parameters=True, unused_parameters=0),
        shares={"host": 0.1},
        traced=traced,
    )
    assert found(waiting)["ddp-find-unused-on"].also == ["host-bound"]


def test_unused_parameters_must_be_looked_for():
    used = wrapped(find_unused_parameters=True, unused_parameters=4096)
    assert "ddp-find-unused-on" not in found(on_gpu(models=used))
    assert "ddp-find-unused-on" not in found(on_gpu(models=wrapped(unused_parameters=0)))
    untold = on_gpu(models=wrapped(find_unused_parameters=True))
    assert lacks(untold, "ddp-find-unused-on") == ["unused_parameters of DistributedDataParallel"]


def accumulating(num_calls: int = 4, num_synced: int = 8):
    cycle = [
        CyclePart(kind="draw", name="DataLoader", num=num_calls),
        CyclePart(kind="call", name="DistributedDataParallel", num=num_calls),
        CyclePart(kind="step", name="SGD"),
    ]
    models = [
        model(
            "cpu",
            wrapper="DistributedDataParallel",
            ddp=wrapped()[0].ddp,
            call={"num": 8, "num_synced": num_synced},
        )
    ]
    return found(on_cpu(models=models, shares={"communication": 0.4}, cycle=cycle))


def test_gradients_that_are_exchanged_for_each_batch_of_an_update():
    finding = accumulating()["ddp-no-sync-absent"]
    assert finding.share == pytest.approx(0.3) and "no_sync()" in finding.remedy
    assert "ddp-no-sync-absent" not in accumulating(num_synced=2)
    assert "ddp-no-sync-absent" not in accumulating(num_calls=1)


def test_all_reduces_beside_which_nothing_runs():
    finding = found(on_gpu(lost("ddp-bucket-cap", 0.3), models=wrapped()))["ddp-bucket-cap"]
    assert (finding.share, finding.where) == (0.3, AT)
    assert "bucket_cap_mb: 25" in finding.evidence
    assert "ddp-bucket-cap" not in found(on_gpu(models=wrapped()))


def test_bucket_finding_leaves_out_time_that_ranks_wait_for_one_another():
    both = found(
        two_ranks(on_gpu(lost("ddp-bucket-cap", 0.3), lost("rank-imbalance", 0.2), models=wrapped()))
    )
    assert both["ddp-bucket-cap"].share == pytest.approx(0.1)
    assert both["rank-imbalance"].share == 0.2


def test_gradients_that_are_copied_into_buckets():
    # 20 GB four times at 2 TB/s are 40 ms of 100.
    models = wrapped(num_bytes=20 * 10**9, gradient_as_bucket_view=False)
    much = {"kernels": [kernels(copy=0.6, matmul=0.4)]}
    assert found(on_gpu(models=models, traced=much))["ddp-bucket-view"].share == pytest.approx(0.04 / 0.1)
    little = {"kernels": [kernels(copy=0.1, matmul=0.9)]}
    assert found(on_gpu(models=models, traced=little))["ddp-bucket-view"].share == pytest.approx(0.1)
    assert "ddp-bucket-view" not in found(on_gpu(models=wrapped(num_bytes=20 * 10**9), traced=much))


def test_a_graph_that_stays_the_same():
    finding = found(on_gpu(models=wrapped(can_set_static_graph=True)))["ddp-static-graph"]
    assert (finding.severity, type(finding.share)) == ("low", Unknown)
    assert "ddp-static-graph" not in found(on_gpu(models=wrapped()))
    assert "ddp-static-graph" not in found(
        on_gpu(models=wrapped(can_set_static_graph=True, static_graph=True))
    )


# Collectives and ranks


def test_collectives_beside_which_nothing_runs():
    assert found(on_gpu(lost("communication-exposed", 0.3)))["communication-exposed"].share == 0.3
    assert found(on_cpu(shares={"communication": 0.4}))["communication-exposed"].share == 0.4
    assert "communication-exposed" not in found(on_gpu())
    assert "communication-exposed" not in found(on_cpu())


def test_collectives_on_the_cpu_have_the_line_that_calls_them() -> None:
    called = "torch/distributed/c10d_logger.py(80): wrapper"
    wait = Line(function="train.py(29): average", text="dist.all_reduce(param.grad)", callee=called, num=80)
    model_call = Line(function="train.py(56): main", callee="torch/nn/modules/module.py(9): __call__", num=15)
    steps = Thread(of_steps=True, num=100, cpu_s=1.0, lines=[wait, model_call])
    turns = Loop(
        function="train.py(26): average",
        callee=called,
        turns=138,
        calls=1,
        launches=3,
        share=0.6,
        num_share=0.4,
    )
    observation = on_cpu(shares={"communication": 0.8}, threads=[steps], traced={"loops": [turns]})
    finding = found(observation)["communication-exposed"]
    assert finding.where == Place("train.py(29): average")
    assert finding.evidence[0].startswith("138 turns of the loop at train.py(26): average, 3 operators each")


def ranks(*waits_s: float, late: Sequence[Straggler] = ()) -> dict[str, Any]:
    rows = [RankTime(rank=rank, step_s=0.1, busy_s=None, waits_s=each) for rank, each in enumerate(waits_s)]
    return {"ranks": Ranks(ranks=rows, imbalance=None, aligned_by="nothing", stragglers=[*late])}


def test_ranks_that_wait_for_one_another_by_chance():
    finding = found(two_ranks(on_cpu(shares={"communication": 0.5}, traced=ranks(0.01, 0.4))))[
        "rank-imbalance"
    ]
    assert (finding.share, finding.severity) == (pytest.approx(0.4), "low")
    assert finding.evidence == ["rank 1 waits 40 ms per step"]


def test_ranks_that_wait_for_the_slowest():
    finding = found(waiting_ranks(0.01, 0.2))
    assert (finding["rank-imbalance"].share, finding["rank-imbalance"].severity) == (0.2, "high")
    assert finding["rank-imbalance"].also == ["communication-exposed"]
    # The rest is the exchange itself; a small wait does not speak for it.
    small = found(waiting_ranks(0.01, 0.1))
    assert small["communication-exposed"].share == pytest.approx(0.4)
    assert found(waiting_ranks(0.19, 0.2))["rank-imbalance"].severity == "low"


@pytest.mark.parametrize(
    ("phases", "says"),
    [
        (["input"], "storage"),
        (["backward"], "as many"),
        (["forward", "backward"], "as many and as long"),
        ([], "as long"),
    ],
)
def test_the_remedy_is_that_of_the_phase(phases, says):
    finding = found(waiting_ranks(0.01, 0.2, late=[Straggler(rank=0, phases=phases)]))["rank-imbalance"]
    assert says in finding.remedy


def waiting_ranks(*waits_s: float, late: Sequence[Straggler] = ()) -> Any:
    """One second, of which the last rank's collectives take half; the waits in it are a loss of the trace."""
    rank = len(waits_s) - 1
    hosts = [HostTime(rank=rank, window_s=1.0, loader_s=0.0, operator_s=0.5, communication_s=0.5)]
    traced = ranks(*waits_s, late=late) | {"hosts": hosts, "window_s": 1.0}
    losses = lost("rank-imbalance", max(waits_s))
    return two_ranks(on_cpu(losses, shares={"communication": 0.5}, traced=traced))


@pytest.mark.parametrize(("late_s", "severity", "share"), [(0.019, "low", 0.19), (0.03, "high", 0.3)])
def test_a_rank_that_is_late_by_no_more_than_recording_adds_to_a_step_is_not_known_to_be_late(
    late_s, severity, share
):
    # Recorded steps take 20 ms longer than plain ones of 0.1 s.
    told = ranks(0.01, 0.7, late=[Straggler(rank=0, late_s=late_s)])
    observation = two_ranks(on_gpu(lost("rank-imbalance", 0.6), traced=told))
    attribution = msgspec.structs.replace(observation.attribution, slowed=1.2)
    finding = found(msgspec.structs.replace(observation, attribution=attribution))["rank-imbalance"]
    assert (finding.severity, finding.share) == (severity, pytest.approx(share))
    assert "a recorded step is 1.20 times as long as an unrecorded one" in finding.evidence


def test_devices_that_wait_for_one_another_are_not_said_to_exchange_data():
    losing = on_gpu(lost("communication-exposed", 0.7), traced=ranks(0.6, 0.0))
    finding = found(two_ranks(losing))
    assert finding["rank-imbalance"].severity == "low"
    assert "communication-exposed" not in finding or finding["communication-exposed"].share == pytest.approx(
        0.1
    )


@pytest.mark.parametrize(("exchanging_s", "severity"), [((0.5, 0.49), "low"), ((0.3, 0.5), "high")])
def test_ranks_that_work_as_long_wait_for_no_slow_one(exchanging_s, severity):
    rows = [
        HostTime(rank=rank, window_s=1.0, loader_s=0.0, operator_s=0.4, communication_s=exchanged)
        for rank, exchanged in enumerate(exchanging_s)
    ]
    traced = ranks(0.01, 0.2) | {"hosts": rows, "window_s": 1.0}
    observation = two_ranks(on_cpu(lost("rank-imbalance", 0.2), shares={"communication": 0.5}, traced=traced))
    finding = found(observation)["rank-imbalance"]
    assert (finding.share, finding.severity) == (0.2, severity)


def test_an_exchange_that_is_all_waiting_is_the_slow_ranks():
    finding = found(waiting_ranks(0.0, 0.5))
    assert "communication-exposed" not in finding
    assert finding["rank-imbalance"].also == []


def test_small_waits_and_single_ranks_are_no_imbalance():
    assert found(two_ranks(on_gpu(lost("rank-imbalance", 0.04))))["rank-imbalance"].severity == "low"
    assert "rank-imbalance" not in found(on_gpu(lost("rank-imbalance", 0.4)))
    assert "rank-imbalance" not in found(two_ranks(on_gpu()))


# Unknown


@pytest.mark.parametrize("id_", ["ddp-bucket-cap", "communication-exposed", "rank-imbalance"])
def test_rules_on_ranks_are_unknown_without_a_trace(id_):
    assert lacks(two_ranks(observed(models=wrapped())), id_) == ["where a step goes"]


def test_buckets_are_unknown_without_a_timing():
    models = wrapped(gradient_as_bucket_view=False)
    assert lacks(observed(models=models), "ddp-bucket-view") == ["timing of the plain window"]
