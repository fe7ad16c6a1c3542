"""Rules on torch.compile: each fires, is silent, and says what it lacks."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune.doctor import Missing, ObservationView
from dynotune.doctor.bounds import bound_of_compiling
from dynotune.schema.compilation import Compilation
from dynotune.schema.facts import Unknown
from dynotune.schema.trace_summary import Called, Place

from .devices import CALLED, found, kernels, lacks, lost, model, on_cpu, on_gpu, operator, settings, waits
from .observations import NOT_ASKED, observed, timing

COMPILED = [model(compiled=True)]


def compiled(
    program: Any = on_gpu,
    *losses: Any,
    shares: Any = None,
    timed: Any = None,
    operators: Any = None,
    without: Any = None,
    **fields: Any,
) -> Any:
    told = {
        "num_graphs": 1,
        "num_graph_breaks": 0,
        "num_recompilations": 0,
        "num_compilations_in_window": 0,
    } | fields
    device = "cuda:0" if program is on_gpu else "cpu"
    return program(
        *losses,
        shares=shares or {"host": 0.3},
        traced={
            "operators": operators
            or [operator("aten::mul", 10, 0.5), operator("## Call CompiledFxGraph", 10, 0.5)]
        },
        compilation=Compilation(**told),
        models=[model(device, compiled=True)],
        timed=timed or timing(),
        **({"without": without} if without else {}),
    )


def test_pointwise_kernels_weigh_only_where_they_are_most_of_a_step():
    usual = found(on_gpu(lost("compile-default", 0.3)))["compile-default"]
    assert (usual.share, usual.severity, settings(usual)) == (
        pytest.approx(0.3),
        "low",
        ["compile.mode=default"],
    )
    assert found(on_gpu(lost("compile-default", 0.5)))["compile-default"].severity == "medium"
    assert "compile-default" not in found(on_gpu(lost("compile-default", 0.4), models=COMPILED))
    assert "compile-default" not in found(on_gpu(lost("compile-default", 0.4), shares={"host": 0.5}))


def test_graph_breaks_stand_for_the_waits_and_name_the_line():
    breaks = ["3x /home/me/model.py:31: call to print", "1x torch/nn/x.py:2: other"]
    finding = found(compiled(on_gpu, lost("host-bound", 0.3), num_graph_breaks=4, breaks=breaks))[
        "graph-breaks"
    ]
    assert (finding.share, finding.severity, finding.also) == (pytest.approx(0.3), "high", ["host-bound"])
    assert finding.where == Place("/home/me/model.py(31): forward")
    assert finding.evidence == breaks


def test_a_wait_for_the_value_on_which_compiled_code_branches_is_one_finding_with_the_break():
    read = msgspec.structs.replace(
        lost("sync-per-step", 0.05),
        where=Place("model.py(30): forward", "aten::is_nonzero", "cudaStreamSynchronize"),
    )
    breaks = ["12x /home/me/model.py:31: Data-dependent branching"]
    losses, without = (lost("host-bound", 0.1), read), {"sync-per-step": 0.2}
    told = found(
        compiled(on_gpu, *losses, num_graph_breaks=12, breaks=breaks, without=without, shares={"host": 0.15})
    )
    assert told["graph-breaks"].share == pytest.approx(0.2)
    assert "sync-per-step" not in told
    elsewhere = ["12x /home/me/model.py:31: call to print"]
    both = found(compiled(on_gpu, *losses, num_graph_breaks=12, breaks=elsewhere, without=without))
    assert "sync-per-step" in both


def test_graph_breaks_on_the_cpu_cost_what_was_not_compiled():
    finding = found(compiled(on_cpu, num_graph_breaks=1, breaks=["1x no line"]))["graph-breaks"]
    assert finding.share == pytest.approx(
        0.3 + 0.75 * 0.7 * 0.5
    )  # fused, three quarters of it go; there is one piece
    assert finding.where == CALLED


def test_operators_that_are_compiled_already_or_stay_calls_of_a_library_are_not_spared():
    rows = [
        operator("aten::mm", 10, 0.4),
        operator("aten::gelu", 10, 0.1, callers={"library": Called(num=10, self_s=0.1)}),
        operator("aten::clone", 10, 0.4, callers={"compiled": Called(num=10, self_s=0.4)}),
        operator("aten::add_", 10, 0.1, callers={"optimizer": Called(num=10, self_s=0.1)}),
    ]
    observation = compiled(on_cpu, num_graph_breaks=1, breaks=[], shares={"host": 0.0}, operators=rows)
    assert found(observation)["graph-breaks"].share == pytest.approx(0.75 * 0.1)


def test_pieces_could_be_one():
    rows = [operator("## Call CompiledFxGraph f3", 20, 0.6), operator("## Call CompiledFxGraph f4", 20, 0.2)]
    rows.append(operator("aten::mm", 10, 0.2))
    observation = compiled(on_cpu, num_graph_breaks=1, breaks=[], shares={"host": 0.0}, operators=rows)
    # Four pieces a step, of which three are too many.
    assert found(observation)["graph-breaks"].share == pytest.approx(0.75 * 0.8 * 0.75)


def test_each_cut_keeps_two_generated_kernels_of_a_device_apart():
    def in_pieces(num_pieces: int, num_graph_breaks: int = 1) -> Any:
        # A step has 20 generated kernels, which take 40% of it.
        traced = {
            "kernels": [kernels(num=200, matmul=0.6, inductor=0.4)],
            "operators": [operator("## Call CompiledFxGraph f3", 10 * num_pieces, 0.1)],
        }
        told = Compilation(
            num_graphs=1,
            num_graph_breaks=num_graph_breaks,
            num_recompilations=0,
            num_compilations_in_window=0,
        )
        return found(on_gpu(traced=traced, compilation=told, models=COMPILED))

    assert in_pieces(6)["graph-breaks"].share == pytest.approx(0.75 * 0.4 * 5 / 20)
    assert in_pieces(60)["graph-breaks"].share == pytest.approx(0.75 * 0.4)
    assert in_pieces(1)["graph-breaks"].share == 0.0
    # Without a break, a model that is compiled part by part.
    assert "graph-breaks" not in in_pieces(6, num_graph_breaks=0)


def test_a_model_of_which_no_graph_was_made_runs_uncompiled():
    skipped = ["1x /home/me/model.py:5: graph break in loop"]
    finding = found(compiled(num_graphs=0, modes=["default"], skipped=skipped))["graph-breaks"]
    assert (finding.severity, finding.evidence) == ("high", skipped)
    assert "all of it runs uncompiled" in finding.claim
    assert "graph-breaks" in found(compiled(num_graphs=0, modes=["default"], shares={"host": 0.0}))
    assert "graph-breaks" not in found(compiled(num_graphs=0))


def test_the_silent_fall_back_to_eager_is_high():
    finding = found(compiled(on_gpu, num_recompilations=8, limit_reached=["model.py(3): forward"]))[
        "recompiles"
    ]
    assert (finding.severity, finding.share) == ("high", pytest.approx(0.3))
    assert "model.py(3): forward" in finding.claim
    assert "mark_dynamic" in finding.remedy


def test_recompilations_within_the_window_cost_what_steps_take_beyond_the_median():
    uneven = timing(step_s=0.1, median_step_s=0.08)
    told = {"num_recompilations": 3, "num_compilations_in_window": 2}
    assert found(compiled(timed=uneven, **told))["recompiles"].share == pytest.approx(0.2)
    before = found(compiled(timed=uneven, num_recompilations=3))["recompiles"]
    assert (before.severity, before.kind) == ("low", "start")


def test_values_that_change_are_no_shapes():
    told = {"num_recompilations": 3, "recompilations": ["3x model.py(3): L['n'] == 4"]}
    assert "tensor" in found(compiled(**told))["recompiles"].remedy


def test_a_program_that_compiles_whole_and_once_has_no_finding():
    assert not found(compiled(shares={"host": 0.01})).keys() & {*RULES, "compile-default"}


GRAPHS: dict[str, Any] = {"modes": ["reduce-overhead"]}


def test_cuda_graphs_that_were_left_out():
    finding = found(compiled(cudagraph_skips=["2x mutated inputs"], **GRAPHS))["cudagraph-skipped"]
    assert (finding.share, finding.severity) == (pytest.approx(0.3), "high")
    assert "cudagraph-skipped" not in found(
        compiled(cudagraph_skips=["2x mutated inputs"], modes=["default"])
    )
    assert "cudagraph-skipped" not in found(compiled(on_cpu, cudagraph_skips=["1x"], **GRAPHS))


@pytest.mark.parametrize(("in_graphs", "is_named"), [(0, True), (900, False), (None, False)])
def test_cuda_graphs_are_left_out_when_no_recorded_kernel_comes_from_one(in_graphs, is_named):
    """A size of inputs that comes for the first time runs without, whatever torch says."""
    seen = msgspec.structs.replace(kernels(), in_graphs=in_graphs)
    made = Compilation(
        num_graphs=1, num_graph_breaks=0, num_recompilations=0, num_compilations_in_window=0, **GRAPHS
    )
    findings = found(on_gpu(traced={"kernels": [seen]}, compilation=made, models=COMPILED))
    assert ("cudagraph-skipped" in findings) == is_named


def test_cuda_graphs_that_are_recorded_again():
    finding = found(compiled(num_cudagraphs_in_window=5, **GRAPHS))["cudagraph-rerecord"]
    assert finding.share == pytest.approx(0.3)
    assert "cudagraph-rerecord" not in found(compiled(num_cudagraphs_in_window=0, **GRAPHS))
    assert lacks(compiled(**GRAPHS), "cudagraph-rerecord") == ["how often CUDA graphs were recorded"]


def started(folder: str | None = None, container: str | None = "docker", first_s: float = 40.0) -> Any:
    return on_gpu(
        facts={"host.container": container, "env.TORCHINDUCTOR_CACHE_DIR": folder},
        timed=timing(time_to_first_step_s=first_s),
        models=COMPILED,
        compilation=Compilation(
            num_graphs=2, num_graph_breaks=0, num_recompilations=0, num_compilations_in_window=0
        ),
    )


def test_a_cache_that_goes_with_the_container():
    for folder in (None, "/tmp/cache"):
        finding = found(started(folder))["compile-cold-cache"]
        assert (finding.kind, finding.severity, type(finding.share)) == ("start", "low", Unknown)
    for other in (started("/data/cache"), started(container=None), started(first_s=3.0)):
        assert "compile-cold-cache" not in found(other)


RULES = ("graph-breaks", "recompiles", "cudagraph-skipped", "cudagraph-rerecord", "compile-cold-cache")


@pytest.mark.parametrize("id_", RULES)
def test_compile_rules_are_unknown_when_torch_compile_could_not_be_looked_at(id_):
    failed = {"compilation": "KeyError"}
    assert lacks(on_gpu(compilation=Unknown("looking at it failed: KeyError"), failed=failed), id_) == [
        "what torch.compile did"
    ]
    assert lacks(on_gpu(models=COMPILED), id_) == ["what torch.compile did"]
    assert lacks(on_gpu(), id_) == []


def test_graph_breaks_are_told_without_a_trace_and_bounded_by_nothing():
    told = Compilation(num_graphs=1, num_graph_breaks=2, num_recompilations=0, num_compilations_in_window=0)
    finding = found(observed(models=COMPILED, compilation=told))["graph-breaks"]
    assert (type(finding.share), finding.severity) == (Unknown, "medium")


def test_pointwise_kernels_are_unknown_without_a_trace():
    assert lacks(observed(models=[model()], timed=NOT_ASKED), "compile-default") == ["where a step goes"]


def test_a_read_elsewhere_in_the_file_of_a_break_is_a_wait_of_its_own():
    here = "train.py(20): forward", "train.py(112): main"
    reads = [
        msgspec.structs.replace(
            lost("sync-per-step", share), where=Place(function, "aten::item", "cudaStreamSynchronize")
        )
        for function, share in zip(here, (0.05, 0.15), strict=True)
    ]
    breaks = ["12x /home/me/train.py:25: Data-dependent branching"]
    told = found(
        compiled(
            on_gpu,
            lost("host-bound", 0.1),
            *reads,
            num_graph_breaks=12,
            breaks=breaks,
            without={"sync-per-step": 0.4},
        )
    )
    assert told["sync-per-step"].share == pytest.approx(0.4 * 0.15 / 0.20)
    assert told["sync-per-step"].where.function == here[1]
    other = [breaks[0].replace("train.py", "retrain.py")]
    assert found(compiled(on_gpu, *reads, num_graph_breaks=12, breaks=other))[
        "sync-per-step"
    ].share == pytest.approx(0.2)


# What compiling can save at most. Ten steps of 0.1 s are recorded: 0.3 s of them are 30% of a step.


def compiling(*losses: Any, fusable_s: float | None = 0.3, traced: Any = None, **fields: Any) -> float:
    told = msgspec.structs.replace(kernels(matmul=0.5, cast=0.5), fusable_s=fusable_s)
    return bound_of_compiling(
        ObservationView(on_gpu(*losses, traced={"kernels": [told]} | (traced or {}), **fields))
    )


@pytest.mark.parametrize(
    ("shares", "bound"),
    [
        ({}, 0.3),
        ({"host": 0.24}, 0.54),  # the device's work counts though the host sets the pace: both get shorter
        ({"host": 0.8}, 1.0),  # of the device's work no more than there is
        ({"input": 0.3}, 0.0),  # the loader sets the pace
        ({"input": 0.3, "host": 0.1}, 0.1),
        ({"input": 0.04, "communication": 0.2}, 0.3),
    ],
)
def test_compiling_saves_no_more_than_the_hosts_share_and_what_fusing_spares(
    shares: Any, bound: float
) -> None:
    assert compiling(shares=shares) == pytest.approx(bound)


def test_fusing_spares_the_hosts_wait_for_the_device_when_the_loader_sets_the_pace() -> None:
    assert compiling(shares={"input": 0.3}, traced={"syncs": [waits(0.2)]}) == pytest.approx(0.2)


def test_pauses_of_queued_kernels_are_counted_once() -> None:
    late = lost("launch-latency", 0.2)
    assert compiling(late, shares={"host": 0.2}) == pytest.approx(0.5)
    assert compiling(late, shares={"host": 0.2, "other": 0.05}) == pytest.approx(0.55)
    assert compiling(shares={"other": 0.3}) == pytest.approx(0.3)


@pytest.mark.parametrize(
    "lacking", [{"fusable_s": None}, {"traced": {"num_steps": None}}, {"timed": NOT_ASKED}]
)
def test_compiling_bound_is_unknown_when_a_fact_is_missing(lacking: Any) -> None:
    with pytest.raises(Missing):
        compiling(**lacking)


@given(
    fusable_s=st.floats(0, 2),
    parts=st.lists(st.floats(0, 1), min_size=6, max_size=6).filter(any),
    late=st.floats(0, 1),
)
def test_compiling_saves_nothing_of_copies_collectives_and_the_loader(
    fusable_s: float, parts: list[float], late: float
) -> None:
    names = ("input", "transfer", "host", "communication", "other", "device")
    shares = {name: part / sum(parts) for name, part in zip(names, parts, strict=True)}
    bound = compiling(lost("launch-latency", late), fusable_s=fusable_s, shares=shares)
    kept = shares["input"] + shares["transfer"] + shares["communication"]
    assert shares["host"] - 1e-9 <= bound <= 1 - kept + 1e-9
