"""Rules on copies between host and device: each fires, is silent, and says what it lacks."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dynotune.doctor import ObservationView, examine
from dynotune.schema.attribution import LostTime
from dynotune.schema.facts import Unknown
from dynotune.schema.host import Line, Thread
from dynotune.schema.model import ModelCall
from dynotune.schema.observation import Observation
from dynotune.schema.tensor import Tensor
from dynotune.schema.trace_summary import Called, Copies, DeviceTime, Operator, Place, TraceSummary

from .observations import NOT_ASKED, attribution, loss, observed, timing
from .test_loader_rules import found, lacks, loader, loading, settings

AT = Place("train.py(31): step", "aten::to", "cudaMemcpyAsync")
PCIE_5: dict[str, Any] = {"gpu.pcie_max_generation": 5, "gpu.pcie_max_width": 16}


def copies(pinned: bool | None, *, kind: str = "HtoD", num: int = 10, num_bytes: int = 10 << 20) -> Copies:
    """Ten copies in ten steps, of 10 MB in all and 8 GB/s."""
    total_s = num_bytes / 8e9
    return Copies(
        rank=None, kind=kind, pinned=pinned, num=num, num_bytes=num_bytes, total_s=total_s,
        bytes_per_s=8e9, exposed_s=total_s, median_bytes=num_bytes // num,
    )  # fmt: skip


def trace(*rows: Copies, **fields: Any) -> TraceSummary:
    """Ten steps on a device."""
    device = DeviceTime(
        rank=None, device=0, window_s=1.0, busy_s=1.0, compute_s=1.0, copy_s=0, communication_s=0, idle_s=0
    )
    usual: dict[str, Any] = {
        "files": [],
        "recorder": "",
        "verdict": "",
        "window_s": 1.0,
        "num_steps": 10,
        "step_source": "profiler",
        "shares": None,
        "causes": [],
        "devices": [device],
        "gaps": [],
        "copies": [*rows],
        "syncs": [],
        "allocations": [],
        "kernels": [],
        "communication": [],
        "ranks": None,
        "operators": [],
    }
    return TraceSummary(**(usual | fields))


def moves(*losses: LostTime, rows: tuple[Copies, ...], facts: Any = None, **process: Any) -> Observation:
    fields: dict[str, Any] = {"timed": timing(), "loaders": [loader(2)], "rss_growth_bytes": 0}
    attributed = attribution(*losses, without=process.pop("without", None), **process.pop("shares", {}))
    return observed(facts=facts or {}, attributed=attributed, trace=trace(*rows), **(fields | process))


def lost(id_: str, share: float) -> LostTime:
    return loss(id_, share, where=AT, evidence=["what was seen"])


PAGEABLE, PINNED = copies(False), copies(True)


def test_batches_from_pageable_memory():
    finding = found(moves(lost("pin-memory-off", 0.3), rows=(PAGEABLE,)))["pin-memory-off"]
    assert (finding.share, finding.severity, finding.where) == (0.3, "high", AT)
    assert settings(finding) == ["loader.pin_memory=true", "transfer.non_blocking=true"]


def test_pinning_finding_leaves_out_the_least_time_that_the_bus_needs():
    finding = found(moves(lost("pin-memory-off", 0.3), rows=(PAGEABLE,), facts=PCIE_5))["pin-memory-off"]
    assert finding.share == pytest.approx(0.3 * (1 - 8 / 63.04))


def test_waits_for_pageable_copies_belong_to_the_pinning():
    both = found(moves(lost("pin-memory-off", 0.1), lost("h2d-blocking", 0.2), rows=(PAGEABLE,)))
    assert both["pin-memory-off"].share == pytest.approx(0.3)
    assert "h2d-blocking" not in both


def test_copies_of_tensors_that_are_made_for_it_belong_to_the_making():
    losses = lost("create-on-cpu-then-move", 0.12), lost("pin-memory-off", 0.05), lost("h2d-blocking", 0.08)
    made = found(moves(*losses, rows=(PAGEABLE,), without={"create-on-cpu-then-move": 0.3}))
    assert made["create-on-cpu-then-move"].share == pytest.approx(0.3)
    assert "pin-memory-off" not in made
    both = found(moves(*losses, rows=(PAGEABLE,), without={"create-on-cpu-then-move": 0.15}))
    assert both["pin-memory-off"].share == pytest.approx(0.1)
    # Making them held nobody up: it is no finding, so the copies stay one.
    quick = found(
        moves(lost("pin-memory-off", 0.2), rows=(PAGEABLE,), without={"create-on-cpu-then-move": 0.15})
    )
    assert quick["pin-memory-off"].share == pytest.approx(0.2)
    assert "create-on-cpu-then-move" not in quick


def test_a_program_that_copies_its_own_tensors_is_not_told_to_set_its_loader():
    finding = found(moves(lost("pin-memory-off", 0.3), rows=(PAGEABLE,), loaders=[]))["pin-memory-off"]
    assert finding.candidates == []
    assert "pinned once" in finding.remedy


def test_pinned_copies_are_no_finding_of_pinning():
    assert "pin-memory-off" not in found(moves(lost("h2d-not-overlapped", 0.3), rows=(PINNED,)))
    assert "pin-memory-off" not in found(moves(lost("pin-memory-off", 0.004), rows=(PAGEABLE,)))


@pytest.mark.parametrize(
    "id_",
    ["pin-memory-off", "h2d-blocking", "h2d-not-overlapped", "many-small-copies", "create-on-cpu-then-move"],
)
def test_copies_are_unknown_without_a_trace(id_):
    on_device = loader(2)
    model = moves(rows=()).processes[0].models
    lacking = observed(timed=timing(), loaders=[on_device], models=[*model, _model("cuda:0")])
    assert lacks(lacking, id_) in (["where a step goes"], ["the trace"])


def _model(device: str) -> Any:
    from dynotune.schema.model import Model

    return Model(name="Net", num_parameters=1, parameter_bytes=4, devices={device: 1})


def test_nothing_is_said_of_copies_where_there_is_no_device():
    quiet = observed(timed=timing(), loaders=[loader(2)], models=[_model("cpu")], rss_growth_bytes=0,
                     attributed=attribution())  # fmt: skip
    assert found(quiet) == {}
    assert [lacks(quiet, id_) for id_ in ("pin-memory-off", "h2d-blocking", "transfer-float")] == [[], [], []]


def test_batches_of_a_class_that_the_loader_cannot_pin():
    given = loader(2, pin_memory=True, batch_is_pinnable=False)
    finding = found(moves(lost("pin-memory-off", 0.3), rows=(PAGEABLE,), loaders=[given]))[
        "custom-batch-not-pinned"
    ]
    assert finding.also == ["pin-memory-off"]
    pinned = loader(2, pin_memory=True, batch_is_pinnable=True)
    assert "custom-batch-not-pinned" not in found(
        moves(lost("pin-memory-off", 0.3), rows=(PAGEABLE,), loaders=[pinned])
    )


def test_an_argument_that_torch_ignores():
    given = loader(2, pin_memory=True, pin_memory_device="cuda")
    assert found(moves(rows=(), loaders=[given]))["pin-device-arg"].severity == "low"
    assert "pin-device-arg" not in found(moves(rows=()))


def test_a_pinning_thread_that_sets_the_pace():
    def with_pin(pin_s: float | None) -> Observation:
        given = loader(2, pin_memory=True, loading=loading(pin_s=pin_s, busy_share=0.5))
        known = attribution(loss("loader-bound", 0.4), input=0.4)
        return observed(
            facts={"host.num_cores": 8}, timed=timing(), attributed=known, trace=trace(), loaders=[given]
        )

    finding = found(with_pin(0.095))["pin-thread-bound"]
    assert (finding.share, finding.also) == (0.4, ["loader-bound"])
    assert settings(finding) == ["loader.pin_memory=false"]
    assert "pin-thread-bound" not in found(with_pin(0.01))
    assert "pin-thread-bound" not in found(with_pin(None))


def test_the_pinning_thread_is_unknown_where_loading_was_not_timed():
    given = loader(2, pin_memory=True, loading=NOT_ASKED)
    known = attribution(loss("loader-bound", 0.4), input=0.4)
    lacking = observed(timed=timing(), attributed=known, trace=trace(), loaders=[given])
    assert lacks(lacking, "pin-thread-bound") == ["what pinning takes"]


def test_waiting_for_each_pinned_copy():
    finding = found(moves(lost("h2d-blocking", 0.2), rows=(PINNED,)))["h2d-blocking"]
    assert (finding.share, settings(finding)) == (0.2, ["transfer.non_blocking=true"])
    assert "h2d-blocking" not in found(moves(lost("h2d-blocking", 0.005), rows=(PINNED,)))


def test_pinning_finding_counts_work_queued_late_for_pageable_copies():
    # Copies that take no time themselves, and the host waits for each.
    late = {"h2d-blocking": 0.06}
    small = found(moves(lost("host-bound", 0.07), rows=(PAGEABLE,), without=late, shares={"host": 0.075}))
    assert small["pin-memory-off"].share == pytest.approx(0.06)
    most = found(moves(rows=(PAGEABLE,), without={"h2d-blocking": 0.3}, shares={"host": 0.075}))
    assert most["pin-memory-off"].share == pytest.approx(0.075)
    assert "pin-memory-off" not in found(moves(rows=(PINNED,), without=late, shares={"host": 0.075}))
    made = found(
        moves(rows=(PAGEABLE,), without=late | {"create-on-cpu-then-move": 0.06}, shares={"host": 0.075})
    )
    assert "pin-memory-off" not in made


def test_a_copy_that_is_waited_for_costs_what_a_step_without_the_wait_saves():
    blocked = moves(lost("h2d-blocking", 0.2), rows=(PINNED,), without={"h2d-blocking": 0.28})
    assert found(blocked)["h2d-blocking"].share == 0.28


def test_a_wait_that_leaves_no_gap_of_its_own_delays_what_is_queued_later():
    without = {"h2d-blocking": 0.12}
    losses = lost("h2d-not-overlapped", 0.2), lost("host-bound", 0.11)
    result = found(moves(*losses, rows=(PINNED,), without=without, shares={"host": 0.12}))
    assert (result["h2d-blocking"].share, result["h2d-blocking"].where) == (0.12, AT)
    assert "host-bound" not in result
    assert "h2d-blocking" not in found(
        moves(*losses, rows=(PAGEABLE,), without=without, shares={"host": 0.12})
    )


def test_copies_that_nothing_runs_beside_can_hide_under_the_rest_alone():
    assert found(moves(lost("h2d-not-overlapped", 0.3), rows=(PINNED,)))["h2d-not-overlapped"].share == 0.3
    most = found(moves(lost("h2d-not-overlapped", 0.8), rows=(PINNED,)))["h2d-not-overlapped"]
    assert most.share == pytest.approx(0.2)
    assert "h2d-not-overlapped" not in found(moves(rows=(PINNED,)))


def images(
    dtype: str = "torch.float32", shape: tuple[int, ...] = (8, 3, 224, 224), num_bytes: int = 1 << 20
) -> Tensor:
    return Tensor(shape=[*shape], dtype=dtype, device="cpu", num_bytes=num_bytes)


def sends(tensor: Tensor | None, distinct: int | None = 256) -> Observation:
    made = loading(num_distinct=distinct)
    batch = None if tensor is None else [tensor]
    return moves(
        lost("h2d-not-overlapped", 0.4), rows=(PINNED,), loaders=[loader(2, batch=batch, loading=made)]
    )


def test_the_share_is_what_bytes_would_save_when_images_are_sent_as_floats():
    finding = found(sends(images()))["transfer-float"]
    assert finding.share == pytest.approx(0.4 * 0.75)
    assert found(sends(images("torch.float64")))["transfer-float"].share == pytest.approx(0.4 * 0.875)
    assert found(sends(images(num_bytes=1 << 19)))["transfer-float"].share == pytest.approx(0.2 * 0.75)


@pytest.mark.parametrize(
    "given",
    [
        sends(images("torch.uint8")),
        sends(images(shape=(8, 64))),
        sends(images(shape=(8, 64, 9, 9))),
        sends(images(), 4000),
    ],
)
def test_float_transfer_finding_is_silent_when_bytes_are_sent_or_cannot_be(given):
    assert "transfer-float" not in found(given)


def takes(tensor: Tensor, **fields: Any) -> Observation:
    """A program without a loader of torch's, whose model takes this."""
    call = ModelCall(grad_enabled=True, inference_mode=False, training=True, inputs=[tensor])
    model = msgspec.structs.replace(_model("cuda:0"), call=call)
    return moves(lost("h2d-not-overlapped", 0.4), rows=(PINNED,), loaders=[], models=[model], **fields)


def test_images_that_the_model_takes_as_they_were_copied():
    on_device = msgspec.structs.replace(images(), device="cuda:0")
    finding = found(takes(on_device))["transfer-float"]
    assert finding.share == pytest.approx(0.4 * 0.75)
    assert finding.also == ["h2d-not-overlapped"]
    # The recorded run had smaller batches than the plain one.
    varied = msgspec.structs.replace(on_device, num_bytes=round(1.2 * on_device.num_bytes))
    assert "transfer-float" in found(takes(varied))
    # Sent as bytes and converted there: four times what was copied.
    assert "transfer-float" not in found(takes(msgspec.structs.replace(on_device, num_bytes=4 << 20)))


def test_images_that_the_program_itself_makes_floats_of():
    """The loader has bytes, and the program converts them before it copies them, with labels."""
    pixels, floats = (
        images("torch.uint8", num_bytes=1 << 18),
        msgspec.structs.replace(images(), device="cuda:0"),
    )
    call = ModelCall(grad_enabled=True, inference_mode=False, training=True, inputs=[floats])
    fields: dict[str, Any] = {
        "loaders": [loader(2, batch=[pixels])],
        "models": [msgspec.structs.replace(_model("cuda:0"), call=call)],
    }
    both = copies(True, num=20, num_bytes=10 * ((1 << 20) + 64))
    result = found(moves(lost("h2d-not-overlapped", 0.4), rows=(both,), **fields))
    assert result["transfer-float"].share == pytest.approx(0.4 * 0.75, rel=0.01)
    # Converting them is the host's work, which the device could do.
    converts = lost("h2d-not-overlapped", 0.2), lost("host-bound", 0.5)
    made = found(moves(*converts, rows=(both,), shares={"host": 0.5}, **fields))["transfer-float"]
    assert (made.share, made.also) == (
        pytest.approx(0.5 + 0.2 * 0.75, rel=0.01),
        ["h2d-not-overlapped", "host-bound"],
    )
    # The loader's batch is all that is copied: floats are made of it on the device.
    as_bytes = copies(True, num=10, num_bytes=10 << 18)
    assert "transfer-float" not in found(moves(lost("h2d-not-overlapped", 0.4), rows=(as_bytes,), **fields))


def test_a_full_link_is_named_by_what_fills_it():
    full = {"gpu.count": 1, **PCIE_5, "window.pcie_rx_bytes_per_s": 50e9, "window.pcie_tx_bytes_per_s": 0}
    for losses in (
        [lost("h2d-not-overlapped", 0.4)],
        [lost("h2d-not-overlapped", 0.4), lost("pin-in-hot-loop", 0.3)],
    ):
        given = moves(
            *losses, rows=(PINNED,), facts=full, without={"pin-in-hot-loop": 0.5}, shares={"transfer": 0.4}
        )
        finding, *_ = examine(ObservationView(given))[0]
        assert finding.id in ("h2d-not-overlapped", "pin-in-hot-loop")
        assert "pcie-saturated" in finding.also


def test_float_transfer_finding_is_unknown_when_no_batch_was_looked_at():
    assert lacks(sends(None), "transfer-float") == ["a batch of the loader"]


def test_many_small_copies_take_the_place_of_what_they_bring_with_them():
    small = copies(False, num=5000, num_bytes=5000 * 1024)
    observation = moves(
        lost("many-small-copies", 0.2), lost("h2d-blocking", 0.3), lost("pin-memory-off", 0.1), rows=(small,)
    )
    result = found(observation)
    assert set(result) == {"many-small-copies"}
    assert result["many-small-copies"].share == pytest.approx(0.5)
    assert result["many-small-copies"].also == ["pin-memory-off"]
    few = copies(False, num=50, num_bytes=50 * 1024)
    assert "many-small-copies" not in found(moves(lost("h2d-blocking", 0.3), rows=(few,)))


def test_random_numbers_that_take_longer_than_a_launch_are_drawn_on_the_host():
    drawn = Operator(
        name="aten::normal_", num=10, self_s=0.2, callers={"program": Called(num=10, self_s=0.2)}
    )
    line = Line(function="train.py(57): make", text="noise = torch.randn(x.shape)", num=40, cpu_s=1.9)
    fields: dict[str, Any] = {
        "threads": [Thread(of_steps=True, num=100, cpu_s=4.9, lines=[line])],
        "shares": {"host": 0.3},
    }

    def draws(*rows: Copies, operator: Operator = drawn) -> dict[str, Any]:
        observation = moves(lost("host-bound", 0.25), rows=rows, **fields)
        return found(msgspec.structs.replace(observation, trace=trace(*rows, operators=[operator])))

    finding = draws(PAGEABLE)["create-on-cpu-then-move"]
    assert (finding.share, finding.where) == (pytest.approx(0.2), Place("train.py(57): make"))
    assert finding.also == ["host-bound"]
    assert "create-on-cpu-then-move" not in draws()
    queued = msgspec.structs.replace(drawn, self_s=0.0004)
    assert "create-on-cpu-then-move" not in draws(PAGEABLE, operator=queued)
    in_loader = msgspec.structs.replace(drawn, callers={"loader": Called(num=10, self_s=0.2)})
    assert "create-on-cpu-then-move" not in draws(PAGEABLE, operator=in_loader)


def test_tensors_made_on_the_host():
    finding = found(moves(lost("create-on-cpu-then-move", 0.3), rows=(PAGEABLE,)))["create-on-cpu-then-move"]
    assert (finding.share, finding.where) == (0.3, AT)
    assert "create-on-cpu-then-move" not in found(moves(rows=(PAGEABLE,)))


def test_pinning_in_each_step():
    finding = found(moves(lost("pin-in-hot-loop", 0.3), rows=(PINNED,)))["pin-in-hot-loop"]
    assert (finding.share, settings(finding)) == (0.3, ["loader.pin_memory=true"])
    assert "pin-in-hot-loop" not in found(moves(lost("pinned-alloc-slow", 0.3), rows=(PINNED,)))


def test_pinning_costs_the_copy_that_begins_late_for_it_too():
    losses = lost("pin-in-hot-loop", 0.2), lost("h2d-not-overlapped", 0.3)
    finding = found(moves(*losses, rows=(PINNED,), without={"pin-in-hot-loop": 0.5}))["pin-in-hot-loop"]
    assert (finding.share, finding.also) == (0.5, ["h2d-not-overlapped"])


def test_allocating_pinned_memory_belongs_to_the_program_that_pins():
    live = {"live.pin_memory_calls": 50, "live.pin_memory_place": "train.py:30"}
    finding = found(moves(lost("pinned-alloc-slow", 0.3), rows=(PINNED,), live=live))["pin-in-hot-loop"]
    assert finding.also == ["pinned-alloc-slow"]


def test_pinning_is_unknown_without_an_attribution():
    lacking = observed(timed=timing(), models=[_model("cuda:0")], trace=Unknown("none"))
    assert lacks(lacking, "pin-in-hot-loop") == ["where a step goes"]
