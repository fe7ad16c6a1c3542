"""Rules on work that need not be: each fires, is silent, and bounds what it costs."""

from __future__ import annotations

from typing import Any

import pytest

from dynotune.schema.allocator import Allocator
from dynotune.schema.diagnosis import Finding
from dynotune.schema.host import Line, StackLine, Thread
from dynotune.schema.model import Table
from dynotune.schema.tensor import Tensor
from dynotune.schema.trace_summary import Called, HostTime, Place, Ungraded

from .devices import CALLED, found, model, on_cpu, on_gpu, operator, optimizer, settings


def tensor(*shape: int, dtype: str = "int64", device: str = "cpu") -> Tensor:
    return Tensor(shape=list(shape), dtype=dtype, device=device, num_bytes=1)


# Embeddings


def embedded(
    *, sparse: bool = False, asked: int = 960, num_rows: int = 300_000, **fields: Any
) -> dict[str, Finding]:
    table = Table(num_rows=num_rows, num_bytes=num_rows * 256, sparse=sparse)
    return found(on_cpu(models=[model("cpu", table=table, call={"inputs": [tensor(asked)]})], **fields))


def test_a_large_table_of_which_few_rows_are_used():
    finding = embedded()["embedding-grads-dense"]
    # 77 MB nine times at 10 GB/s, of a step of 100 ms.
    assert finding.share == pytest.approx(0.69, abs=0.01) and finding.where == CALLED
    assert "SparseAdam" in finding.remedy
    sgd = embedded(optimizers=[optimizer("cpu", name="torch.optim.sgd.SGD")])["embedding-grads-dense"]
    assert sgd.share == pytest.approx(0.38, abs=0.01)


def test_tables_that_are_small_sparse_or_used_whole_are_no_fault():
    assert "embedding-grads-dense" not in embedded(sparse=True)
    assert embedded(num_rows=10_000)["embedding-grads-dense"].severity == "low"
    assert "embedding-grads-dense" not in embedded(asked=200_000)
    assert "embedding-grads-dense" not in embedded(optimizers=[])


def test_dense_gradients_finding_takes_the_tables_share_of_the_optimizer():
    step = Line(
        function="train.py(9): main", text="opt.step()", callee="/lib/torch/optim/optimizer.py(5): w", num=60
    )
    seen = [Thread(of_steps=True, num=100, cpu_s=5.0, lines=[step])]
    table = Table(num_rows=300_000, num_bytes=300_000 * 256, sparse=False)
    half = model("cpu", table=table, parameter_bytes=2 * table.num_bytes, call={"inputs": [tensor(960)]})
    finding = found(on_cpu(models=[half], threads=seen))["embedding-grads-dense"]
    assert finding.share == pytest.approx(0.3, abs=0.01)


# Generation


def test_inputs_that_grow_by_some_at_a_time_are_computed_again_too():
    finding = generating(19, length=200, growth=190)["cache-absent"]
    assert finding.share == pytest.approx(1.0 * (1 - 10 / 200), abs=0.05) and "10 more items" in finding.claim


def generating(num_grown: int, length: int = 64, growth: int = 0, **fields: Any) -> dict[str, Finding]:
    call = {
        "grad_enabled": False,
        "inputs": [tensor(4, length)],
        "num": 20,
        "num_grown": num_grown,
        "growth": growth,
    }
    told = {"models": [model(training=False, call=call)], "optimizers": [], "shares": {"host": 0.3}}
    return found(on_gpu(**(told | fields)))


def test_calls_that_are_longer_by_one_each_time_compute_the_same_again():
    finding = generating(19)["cache-absent"]
    assert finding.share == pytest.approx(1 - 1 / 64)
    assert finding.where == CALLED and "use_cache=True" in finding.remedy


def test_inputs_of_one_length_or_of_many_are_no_generation():
    assert "cache-absent" not in generating(0)
    assert "cache-absent" not in generating(9)
    assert "cache-absent" not in generating(19, optimizers=[optimizer()])


def test_a_training_that_keeps_all_that_it_has_read_computes_it_again_for_each_new_item():
    trains: dict[str, Any] = {"optimizers": [optimizer()]}
    assert generating(19, growth=19, **trains)["cache-absent"].share == pytest.approx(1 - 1 / 64)
    # Batches that are sorted by length grow by now more, now less.
    assert "cache-absent" not in generating(19, growth=24, **trains)


def test_operators_that_growing_inputs_make_many_are_no_fault_of_their_own():
    many = [operator("aten::add", 4000, 0.04), operator("aten::mm", 2000, 0.03)]
    call = {"grad_enabled": True, "inputs": [tensor(1, 200)], "num": 20, "num_grown": 19, "growth": 19}
    told: dict[str, Any] = {"traced": {"operators": many}, "shares": {"device": 1.0}}
    assert "small-operators" in found(on_cpu(**told))
    findings = found(on_cpu(models=[model("cpu", call=call)], **told))
    assert findings["cache-absent"].also == ["small-operators"]


# Types


def test_a_model_in_double_precision():
    finding = found(on_cpu(models=[model("cpu", dtypes={"float64": 1000})]))["double-precision"]
    assert finding.share == pytest.approx(0.5)
    inputs = {"inputs": [tensor(8, 8, dtype="float64")]}
    assert "double-precision" in found(on_cpu(models=[model("cpu", call=inputs)]))
    assert "double-precision" not in found(on_cpu())


# Operators


def small(num: int = 4000, **fields: Any) -> dict[str, Finding]:
    """In ten steps of 0.1 s."""
    rows = [operator("aten::tanh_", num, num * 5e-6), operator("aten::mm", 100, 100 * 50e-6)]
    steps = Thread(
        of_steps=True,
        num=100,
        cpu_s=5.0,
        lines=[Line(function="net.py(12): forward", text="h = h + w[t]", num=80)],
    )
    return found(on_cpu(**({"traced": {"operators": rows}, "threads": [steps]} | fields)))


def test_many_operators_that_do_little_are_named_with_their_line():
    finding = small(8000)["small-operators"]
    assert finding.share == pytest.approx(0.5 * 0.04 / 0.045, abs=0.01)
    assert finding.where == Place("net.py(12): forward") and settings(finding) == ["compile.mode=default"]
    assert "aten::tanh_ 800 times per step" in finding.evidence[-1]
    compiled = [model("cpu", compiled=True)]
    assert small(8000, models=compiled)["small-operators"].candidates == []


@pytest.mark.parametrize(("caller", "is_named"), [("program", True), ("library", False)])
def test_small_operators_are_the_programs_when_it_calls_them_itself(caller, is_named):
    """A recurrent layer of torch calls thousands, and no program can call them less often."""
    callers = {caller: Called(num=4000, self_s=0.02), "backward": Called(num=4000, self_s=0.02)}
    rows = [operator("aten::tanh_", 8000, 0.04, callers=callers), operator("aten::mm", 100, 0.005)]
    assert ("small-operators" in small(traced={"operators": rows})) == is_named


def test_operators_of_several_ranks_count_once() -> None:
    rows = [operator("aten::tanh_", 8000, 0.04), operator("aten::mm", 100, 0.005)]
    hosts = [
        HostTime(rank=rank, window_s=1.0, loader_s=0, operator_s=0.9, communication_s=0) for rank in range(2)
    ]
    finding = small(traced={"operators": rows * 2, "hosts": hosts})["small-operators"]
    assert finding.claim.startswith("The program calls 810 operators a step")
    assert finding.evidence[-1] == "most often: aten::tanh_ 800 times per step"


def test_place_is_a_line_of_the_forward_pass_when_no_loop_is_known() -> None:
    engine = "torch/autograd/graph.py(9): _engine_run_backward"
    backward = Line(function="train.py(9): main", callee="torch/_tensor.py(5): backward", leaf=engine, num=60)
    forward = Line(function="net.py(12): forward", text="h = h + w[t]", num=30)
    steps = Thread(of_steps=True, num=100, cpu_s=5.0, lines=[backward, forward])
    assert small(8000, threads=[steps])["small-operators"].where == Place("net.py(12): forward")


def test_few_small_operators_or_large_ones_are_no_fault():
    assert "small-operators" not in small(1000)
    assert "small-operators" not in found(on_gpu(traced={"operators": [operator("aten::add", 9000, 0.045)]}))


# Work that a training may not need


NORMALIZE = Ungraded(function="net.py(30): normalize", share=0.7)
ROOM = {"host.memory_bytes": 100e9, "host.memory_available_bytes": 60e9}


def test_values_that_depend_on_no_parameter_are_named_with_their_line() -> None:
    stack = [StackLine(function="net.py(33): normalize", text="return d @ adj @ d", num=60)]
    mask = Ungraded(function="net.py(9): forward", share=0.02)
    finding = found(on_cpu(traced={"ungraded": [NORMALIZE, mask]}, stack=stack))["parameter-free-work"]
    assert (finding.share, finding.severity) == (pytest.approx(0.72), "high")
    assert finding.where == Place("net.py(33): normalize")
    assert "70% of a step in net.py(30): normalize" in finding.evidence
    assert finding.evidence[-1] == "mostly at net.py(33): normalize: return d @ adj @ d"


def test_masks_and_positions_are_of_low_severity() -> None:
    mask = Ungraded(function="net.py(9): forward", share=0.12)
    assert found(on_cpu(traced={"ungraded": [mask]}))["parameter-free-work"].severity == "low"
    assert "parameter-free-work" not in found(on_cpu())
    assert "parameter-free-work" not in found(on_cpu(traced={"ungraded": [NORMALIZE]}, optimizers=[]))


def test_device_that_waits_loses_only_its_own_work_to_values_without_a_gradient() -> None:
    observation = on_gpu(shares={"host": 0.02}, traced={"ungraded": [NORMALIZE]})
    assert found(observation)["parameter-free-work"].share == pytest.approx(0.7 * 0.98)


def test_forward_passes_that_run_again_are_loud_when_memory_has_room() -> None:
    finding = found(on_cpu(facts=ROOM, traced={"recomputed": 0.2}))["forward-recomputed"]
    assert (finding.share, finding.severity) == (0.2, "high") and "memory has room" in finding.claim
    assert "forward-recomputed" not in found(on_cpu(traced={"recomputed": 0.0}))


@pytest.mark.parametrize(
    "facts", [ROOM | {"host.memory_available_bytes": 10e9}, {}], ids=["short", "not known"]
)
def test_forward_passes_that_run_again_are_of_low_severity_when_memory_has_no_room(
    facts: dict[str, Any],
) -> None:
    assert found(on_cpu(facts=facts, traced={"recomputed": 0.2}))["forward-recomputed"].severity == "low"


@pytest.mark.parametrize(("reserved_bytes", "severity"), [(10e9, "high"), (70e9, "low")])
def test_room_of_a_device_is_that_beside_what_the_allocator_reserved(
    reserved_bytes: float, severity: str
) -> None:
    counters = dict.fromkeys(Allocator.__struct_fields__, 0) | {"allocated_levels_bytes": []}
    one = Allocator(**counters | {"total_bytes": 80e9, "peak_reserved_bytes": reserved_bytes})
    finding = found(on_gpu(traced={"recomputed": 0.2}, allocators=[one]))["forward-recomputed"]
    assert finding.severity == severity
