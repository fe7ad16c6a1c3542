"""Rules on the host: each fires, is silent, and says what it lacks."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dynotune.doctor import ObservationView, examine
from dynotune.schema.diagnosis import Finding
from dynotune.schema.facts import Unknown
from dynotune.schema.host import Line, Thread
from dynotune.schema.loader import Loader, Loading
from dynotune.schema.observation import Observation
from dynotune.schema.trace_summary import Called, Cause, Copies, HostTime, Place

from .devices import (
    AT,
    CALLED,
    FACTS,
    found,
    kernels,
    lacks,
    lost,
    model,
    on_cpu,
    on_gpu,
    operator,
    optimizer,
    settings,
)
from .observations import NOT_ASKED, observed

SHORT = {"kernels": [kernels(mean_s=3e-6, matmul=1.0)]}


def waiting(*losses: Any, host: float = 0.6, **fields: Any) -> Any:
    return on_gpu(*losses, **({"shares": {"host": host}, "traced": SHORT} | fields))


# Launches


def test_pauses_between_short_kernels():
    finding = found(waiting(lost("launch-bound", 0.5)))["launch-bound"]
    assert (finding.share, finding.severity, finding.where) == (0.5, "high", AT)
    assert settings(finding) == ["compile.mode=reduce-overhead", "optimizer.fused=true"]
    compiled = found(waiting(lost("launch-bound", 0.5), models=[model(compiled=True)]))["launch-bound"]
    assert settings(compiled) == ["optimizer.fused=true"]


@pytest.mark.parametrize(("fused", "fits"), [(True, False), (None, True)])
def test_launch_finding_offers_the_fused_update_when_the_optimizer_has_none(fused, fits):
    updated = optimizer(fused=fused)
    finding = found(waiting(lost("launch-bound", 0.5), optimizers=[updated]))["launch-bound"]
    assert ("optimizer.fused=true" in settings(finding)) is fits


@pytest.mark.parametrize(
    ("products", "compiled", "fits"), [(0.3, False, True), (0.01, False, False), (0.3, True, False)]
)
def test_launch_finding_offers_tf32_when_graphs_would_leave_products_of_the_device(products, compiled, fits):
    losses = lost("launch-bound", 0.5), lost("fp32-matmul-no-tf32", products)
    finding = found(waiting(*losses, models=[model(compiled=compiled)]))["launch-bound"]
    assert ("matmul.fp32_precision=high" in settings(finding)) is fits


def test_the_larger_part_of_the_waits_names_them():
    launches = found(
        waiting(lost("launch-bound", 0.35), lost("host-bound", 0.2), lost("launch-latency", 0.05))
    )
    assert launches["launch-bound"].share == pytest.approx(0.6)
    assert launches["launch-bound"].also == ["launch-latency"]
    assert "host-bound" not in launches
    python = found(waiting(lost("launch-bound", 0.2), lost("host-bound", 0.35)))
    assert (python["launch-bound"].share, python["host-bound"].share) == (0.2, 0.35)


def test_sync_finding_counts_host_work_between_waits():
    both = lost("host-bound", 0.3), lost("sync-per-step", 0.05)
    (finding,) = found(waiting(*both, without={"sync-per-step": 0.35})).values()
    assert (finding.id, finding.share) == ("sync-per-step", 0.35)
    left = found(waiting(*both, without={"sync-per-step": 0.15}))
    assert left["host-bound"].share == pytest.approx(0.2)


def test_loader_finding_counts_work_that_the_host_queues_after_late_batches():
    losses = lost("host-bound", 0.10), lost("loader-bound", 0.08)
    late = found(
        on_gpu(*losses, shares={"host": 0.1, "input": 0.08}, traced=SHORT, without={"loader-bound": 0.18})
    )
    assert late["loader-bound"].share == pytest.approx(0.18)
    assert "host-bound" not in late


@pytest.mark.parametrize(("share", "severity"), [(0.06, "low"), (0.12, "medium"), (0.25, "high")])
def test_waits_for_the_hosts_own_work_weigh_half_since_nothing_takes_them_all_away(
    share: float, severity: str
):
    assert found(waiting(lost("host-bound", share)))["host-bound"].severity == severity


def short(num: int, short_s: float) -> Any:
    """So many of 10,000 kernels in ten steps of 0.1 s; half of the time is that of products."""
    few = msgspec.structs.replace(
        kernels(mean_s=5e-5, num=10_000, matmul=0.5), num_short=num, short_s=short_s
    )
    return {"kernels": [few]}


def test_a_busy_device_may_be_so_with_short_kernels():
    finding = found(waiting(lost("launch-latency", 0.05), host=0.0, traced=short(9000, 0.2)))["launch-bound"]
    assert (finding.share, finding.also) == (pytest.approx(0.25), ["launch-latency"])
    assert "900 of 1,000 kernels" in finding.claim
    for few in (short(7000, 0.2), short(9000, 0.04), {"kernels": [kernels(num=10_000, matmul=0.5)]}):
        assert "launch-bound" not in found(waiting(lost("launch-latency", 0.05), host=0.0, traced=few))


def test_waits_for_the_host_weigh_from_a_twentieth_on():
    assert found(waiting(lost("host-bound", 0.3)))["host-bound"].severity == "high"
    assert found(waiting(lost("host-bound", 0.04)))["host-bound"].severity == "low"
    assert "host-bound" not in found(waiting(lost("host-bound", 0.004)))


def test_idle_time_that_a_lower_clock_explains_is_of_low_severity():
    def lowered(clock_mhz: float, *reasons: str, slowed: float = 2.0) -> Finding:
        facts: Any = {
            "gpu.max_sm_clock_mhz": 1980,
            "window.sm_clock_mhz": clock_mhz,
            "window.clock_reasons": list(reasons),
        }
        losses = lost("host-bound", 0.08), lost("launch-bound", 0.09)
        made = waiting(*losses, host=0.17, facts=facts)
        assert not isinstance(made.attribution, Unknown)
        recorded = msgspec.structs.replace(made.attribution, slowed=slowed)
        return found(msgspec.structs.replace(made, attribution=recorded))["launch-bound"]

    surely = lowered(1980.0, "sw-power-cap 0.50")
    assert (surely.severity, surely.share) == ("high", pytest.approx(0.17))
    # The recorded steps, which leave the device idle, may have run at the highest clock.
    doubtful = lowered(1650.0, "sw-power-cap 1.00")
    assert (doubtful.severity, doubtful.share) == ("low", pytest.approx(0.17))
    assert "17% of a step" in doubtful.evidence[-1]
    # Clocks that were locked are so in recorded steps, too, and steps that take as long when recorded are as
    # hard work.
    assert lowered(1650.0).severity == "high"
    assert lowered(1650.0, "gpu-idle 1.00").severity == "high"
    assert lowered(1650.0, "sw-power-cap 1.00", slowed=1.0).severity == "high"


def test_host_finding_leaves_out_work_queued_late_for_pageable_copies():
    copy = Copies(
        rank=None,
        kind="HtoD",
        pinned=False,
        num=10,
        num_bytes=10_000,
        total_s=1e-4,
        bytes_per_s=1e8,
        exposed_s=1e-4,
    )
    late = waiting(lost("host-bound", 0.10), without={"h2d-blocking": 0.06}, traced={"copies": [copy]})
    assert found(late)["host-bound"].share == pytest.approx(0.04)


def test_python_between_operators_on_the_cpu():
    assert found(on_cpu(shares={"host": 0.4}))["host-bound"].share == 0.4
    # As much as the verdict names has a place; in many programs Python takes as much, and that is no alarm.
    assert found(on_cpu(shares={"host": 0.15}))["host-bound"].severity == "low"
    assert "host-bound" not in found(on_cpu(shares={"host": 0.05}))
    # What the optimizer runs between its own operators is in what that costs.
    loop = Cause(id="optimizer-forloop", lost_s=0.3, share=0.3, claim="", work_s=0.1)
    assert found(on_cpu(shares={"host": 0.4}, traced={"causes": [loop]}))[
        "host-bound"
    ].share == pytest.approx(0.2)
    assert found(on_cpu(shares={"host": 0.6}, traced={"causes": [loop]}))[
        "host-bound"
    ].share == pytest.approx(0.4)


def test_python_counts_as_often_as_it_was_seen_where_slowed_operators_leave_it_no_time():
    """In recorded steps, which other programs slowed, operators take longer than a whole unrecorded step."""
    loops = Line(function="train.py(14): match", text="for box in boxes:", num=15, cpu_s=0.7)
    module = Line(function="train.py(30): step", callee="/lib/torch/nn/modules/module.py(9): call", num=85)
    seen = [Thread(of_steps=True, num=100, cpu_s=5.0, lines=[module, loops])]
    row = HostTime(rank=None, window_s=1.5, loader_s=0.0, operator_s=1.2, communication_s=0.0)
    finding = found(on_cpu(shares={"host": 0.0}, traced={"hosts": [row]}, threads=seen))["host-bound"]
    assert (finding.share, finding.where) == (pytest.approx(0.15), Place("train.py(14): match"))
    # Such lines may call operators: it is no alarm, however much was seen.
    often = msgspec.structs.replace(seen[0], num=30, lines=[loops, msgspec.structs.replace(module, num=15)])
    row_of_python = msgspec.structs.replace(row, window_s=4.0)
    told: dict[str, Any] = {"traced": {"hosts": [row_of_python]}, "threads": [often]}
    assert found(on_cpu(shares={"host": 0.0}, **told))["host-bound"].severity == "low"
    # No more than was recorded: lines that call operators are among those that were seen.
    less = HostTime(rank=None, window_s=1.5, loader_s=0.0, operator_s=1.45, communication_s=0.0)
    assert "host-bound" not in found(on_cpu(shares={"host": 0.0}, traced={"hosts": [less]}, threads=seen))


def test_a_step_that_others_held_up_is_not_the_fault_of_python():
    # 60 ms of 100 in no operator, of which the slower recorded steps have 10.
    row = HostTime(rank=None, window_s=1.0, loader_s=0.0, operator_s=0.9, communication_s=0.0)
    assert "host-bound" not in found(on_cpu(shares={"host": 0.6}, traced={"hosts": [row]}))
    slow = HostTime(rank=None, window_s=1.0, loader_s=0.0, operator_s=0.5, communication_s=0.0)
    assert found(on_cpu(shares={"host": 0.6}, traced={"hosts": [slow]}))["host-bound"].share == pytest.approx(
        0.5
    )


def test_pauses_between_queued_kernels_weigh_where_kernels_are_short():
    assert found(on_gpu(lost("launch-latency", 0.2)))["launch-latency"].severity == "low"
    assert found(on_gpu(lost("launch-latency", 0.2), traced=SHORT))["launch-latency"].severity == "high"
    assert "launch-latency" not in found(on_gpu(lost("launch-latency", 0.005)))


# Optimizers


def test_an_optimizer_that_works_tensor_by_tensor():
    slow = optimizer(foreach=False)
    finding = found(waiting(lost("optimizer-forloop", 0.4), optimizers=[slow]))["optimizer-forloop"]
    assert (finding.share, settings(finding)) == (0.4, ["optimizer.fused=true"])
    by_group = optimizer(fused=True, groups_differ=True)
    finding = found(waiting(lost("optimizer-forloop", 0.4), optimizers=[by_group]))["optimizer-forloop"]
    # The setting holds for groups too.
    assert settings(finding) == ["optimizer.fused=true"]
    assert any("groups that set it for themselves" in said for said in finding.evidence)
    own = optimizer(name="lion.Lion")
    finding = found(waiting(lost("optimizer-forloop", 0.4), optimizers=[own]))["optimizer-forloop"]
    assert finding.candidates == []
    assert "optimizer-forloop" not in found(waiting(optimizers=[slow]))


# Loops over elements

LOOP = [
    operator("aten::select", 8000, 0.02),
    operator("aten::mul", 8000, 0.06),
    operator("aten::mm", 10, 0.02),
]
LAYERS = [operator("aten::mul", 4000, 0.06), operator("aten::addmm", 1000, 0.04)]


def test_a_loop_over_elements_on_the_cpu():
    finding = found(on_cpu(shares={"host": 0.4}, traced={"operators": LOOP}))["python-elementwise-loops"]
    assert finding.share == pytest.approx(0.6 * 0.8 + 0.4 * 0.8)
    assert finding.also == ["host-bound", "small-operators"]
    assert finding.where == CALLED


def test_a_loop_over_elements_on_a_device():
    observation = waiting(lost("launch-bound", 0.5), traced=SHORT | {"operators": LOOP})
    finding = found(observation)["python-elementwise-loops"]
    assert (finding.share, finding.also, finding.where) == (pytest.approx(0.4), ["launch-bound"], AT)


@pytest.mark.parametrize(
    "operators",
    [
        LAYERS,
        [operator("aten::mul", 500, 0.01)],
        [operator("aten::mul", 8000, 0.8)],
        [operator("aten::mul_", 8000, 0.06)],
    ],
)
def test_layers_long_operators_and_optimizers_are_no_loop(operators):
    assert "python-elementwise-loops" not in found(
        on_cpu(shares={"host": 0.4}, traced={"operators": operators})
    )


def test_only_loops_of_the_program_itself_count():
    def called(num: int, self_s: float) -> Called:
        return Called(num=num, self_s=self_s)

    rows = [
        operator(
            "aten::mul", 8000, 0.06, callers={"optimizer": called(4000, 0.03), "library": called(4000, 0.03)}
        ),
        operator("aten::mm", 10, 0.04),
    ]
    assert "python-elementwise-loops" not in found(on_cpu(shares={"host": 0.4}, traced={"operators": rows}))
    rows[0] = operator(
        "aten::mul", 8000, 0.06, callers={"program": called(4000, 0.03), "backward": called(4000, 0.03)}
    )
    finding = found(on_cpu(shares={"host": 0.4}, traced={"operators": rows}))["python-elementwise-loops"]
    # With their backward pass, and in proportion the Python between.
    assert finding.share == pytest.approx(0.6)
    assert finding.evidence[0] == "aten::mul: 400 a step"


def test_of_a_loop_all_that_it_calls_counts_and_nothing_that_is_rare_or_long():
    rows = [
        operator("aten::select", 8000, 0.2, callers={"program": Called(num=8000, self_s=0.2)}),
        operator("aten::max", 400, 0.01, callers={"program": Called(num=400, self_s=0.01)}),
        operator("aten::sum", 400, 0.01, callers={"backward": Called(num=400, self_s=0.01)}),
        operator("aten::cdist", 200, 0.004, callers={"program": Called(num=200, self_s=0.004)}),
        operator("aten::native_batch_norm", 400, 0.176, callers={"program": Called(num=400, self_s=0.176)}),
    ]
    finding = found(on_cpu(traced={"operators": rows}))["python-elementwise-loops"]
    # select, max and sum, of all that is recorded.
    assert finding.share == pytest.approx(0.22 / 0.4)


@pytest.mark.parametrize(("name", "severity"), [("adadelta.Adadelta", "low"), ("adamw.AdamW", "high")])
def test_optimizer_is_loud_on_the_cpu_when_it_has_a_fused_form(name, severity):
    """On the CPU foreach loops as well, so there is nothing else to set."""
    slow = optimizer("cpu", name=f"torch.optim.{name}")
    finding = found(on_cpu(lost("optimizer-forloop", 0.4), optimizers=[slow]))["optimizer-forloop"]
    assert finding.severity == severity and "fused=True" in finding.remedy
    assert "foreach" not in finding.remedy


def test_on_the_cpu_an_optimizer_costs_no_more_than_it_was_seen_to_take():
    in_it = Line(
        function="train.py(9): main", text="opt.step()", leaf="/lib/torch/optim/adam.py(347): _adam", num=12
    )
    seen = [Thread(of_steps=True, num=100, cpu_s=5.0, lines=[in_it])]
    slow = lost("optimizer-forloop", 0.4)
    assert found(on_cpu(slow, threads=seen))["optimizer-forloop"].share == pytest.approx(0.3)
    assert found(on_cpu(slow))["optimizer-forloop"].share == pytest.approx(0.4)
    # Where the program has an optimizer of its own, that is seen elsewhere.
    own = [optimizer("cpu", name="train.Adam")]
    assert found(on_cpu(slow, threads=seen, optimizers=own))["optimizer-forloop"].share == pytest.approx(0.4)


# Threads


def of_one_thread(observation: Observation) -> Finding | None:
    """Of rules on the machine, what is said of a single thread."""
    return next(
        (one for one in examine(ObservationView(observation), "machine")[0] if one.id == "omp-threads-1"),
        None,
    )


def test_a_model_on_the_cpu_that_was_told_to_use_one_thread():
    facts: Any = {"window.tree_cpu_s_per_s": 1.1}
    finding = of_one_thread(on_cpu(live={"live.num_threads": 1}, shares={"host": 0.2}, facts=facts))
    assert finding is not None
    assert (finding.share, settings(finding)) == (pytest.approx(0.8 * 6.9 / 7.9), ["host.num_threads=8"])
    assert "set to use one thread" in finding.claim
    assert of_one_thread(on_cpu(live={"live.num_threads": 2}, facts=facts)) is None
    # Others use the cores; or the model is not on the CPU.
    assert of_one_thread(on_cpu(live={"live.num_threads": 1}, facts={"window.tree_cpu_s_per_s": 8.0})) is None
    assert of_one_thread(on_gpu(live={"live.num_threads": 1}, facts=facts)) is None


def test_cores_that_are_free_while_the_thread_itself_waits_are_none_for_its_operators():
    two: Any = {"window.tree_cpu_s_per_s": 1.6, "host.num_cores": 2}
    waits = [Thread(of_steps=True, num=100, cpu_s=3.0)]  # of five seconds
    assert of_one_thread(on_cpu(live={"live.num_threads": 1}, facts=two, threads=waits)) is None
    works = [Thread(of_steps=True, num=100, cpu_s=4.95)]
    assert of_one_thread(on_cpu(live={"live.num_threads": 1}, facts=two, threads=works)) is not None


def test_of_a_model_on_the_cpu_torch_is_told_and_not_the_variable_that_a_library_overrules():
    facts: Any = {"window.tree_cpu_s_per_s": 1.1, "env.OMP_NUM_THREADS": "1"}
    finding = of_one_thread(on_cpu(live={"live.num_threads": 1}, facts=facts))
    assert finding is not None and "OMP_NUM_THREADS is 1" in finding.claim
    assert settings(finding) == ["host.num_threads=8"] and "torch.set_num_threads" in finding.remedy
    elsewhere = of_one_thread(on_gpu(live={"live.num_threads": 1}, facts=facts))
    assert elsewhere is not None and settings(elsewhere) == ["env.OMP_NUM_THREADS=8"]


def test_threads_of_workers_take_cores_from_the_steps():
    loading = Loading(num_batches=20, fetch_s=0.1, longest_s=0.1, cpu_s=0.1, num_threads=4)
    loaders = [Loader(name="DataLoader", dataset="data.Crops", num_workers=4, loading=loading)]
    live = {"live.num_threads": 8, "live.core_wait_s_per_s": 3.2}
    finding = found(on_cpu(loaders=loaders, live=live))["cpu-oversubscribed"]
    # 24 threads on 8 cores; each of the eight waits for 40% of the time.
    assert finding.share == pytest.approx(0.4 * (1 - 8 / 24))
    assert finding.candidates == [] and "in the workers" in finding.remedy


def test_more_threads_than_cores():
    finding = found(on_cpu(live={"live.num_threads": 32}))["cpu-oversubscribed"]
    assert (finding.share, settings(finding)) == (pytest.approx(0.75), ["host.num_threads=8"])
    assert finding.where == Place()


@pytest.mark.parametrize(
    ("threads", "cores_used"), [(8, 8.0), (10, 8.0), (32, 3.0)]
)  # as many as cores; a few more; cores that have time
def test_threads_that_do_not_wait_for_one_another(threads, cores_used):
    observation = on_cpu(live={"live.num_threads": threads}, facts={"window.tree_cpu_s_per_s": cores_used})
    assert "cpu-oversubscribed" not in found(observation)


def test_cores_that_others_keep_busy_are_waited_for_too():
    facts: Any = {"window.tree_cpu_s_per_s": 3.0, "window.others_cpu_s_per_s": 4.0}
    assert "cpu-oversubscribed" in found(on_cpu(live={"live.num_threads": 32}, facts=facts))


@pytest.mark.parametrize(("waited", "is_found"), [(9.0, True), (0.1, False), (Unknown("not counted"), False)])
def test_threads_that_wait_for_a_core_leave_others_idle(waited, is_found):
    facts: Any = {"window.tree_cpu_s_per_s": 4.0}
    live: Any = {"live.num_threads": 64, "live.core_wait_s_per_s": waited}
    assert ("cpu-oversubscribed" in found(on_cpu(live=live, facts=facts))) == is_found
    # As many threads as cores wait for others' work, not for one another.
    few = on_cpu(live=live | {"live.num_threads": 8}, facts=facts)
    assert "cpu-oversubscribed" not in found(few)


def test_threads_of_opencv_in_workers():
    loader = Loader(name="torch.utils.data.DataLoader", dataset="data.Images", num_workers=8)
    observation = on_cpu(shares={"input": 0.5}, loaders=[loader], live={"live.cv2_num_threads": 8})
    finding = found(observation)["cpu-oversubscribed"]
    assert finding.share == pytest.approx(0.5 * (1 - 8 / 64))
    assert (finding.candidates, "cv2.setNumThreads(0)" in finding.remedy) == ([], True)


# Unknown


def test_rules_on_the_host_are_unknown_without_a_trace():
    lacking = observed(models=[model()], facts=FACTS, live={"live.num_threads": 64})
    for id_ in ("launch-bound", "host-bound", "launch-latency", "optimizer-forloop", "cpu-oversubscribed"):
        assert lacks(lacking, id_) == ["where a step goes"]
    assert lacks(lacking, "python-elementwise-loops") == ["the trace"]
    assert lacks(on_cpu(traced={"num_steps": None}), "python-elementwise-loops") == ["steps in the trace"]
    assert lacks(on_cpu(facts={"host.num_cores": NOT_ASKED}), "cpu-oversubscribed") == ["host.num_cores"]
