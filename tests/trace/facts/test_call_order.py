"""What a program makes on the host to copy it, and what it reads before it has arrived."""

from __future__ import annotations

from dynotune.schema.trace_summary import Place

from ..causes.test_ranking import LOADER, MS, TENSOR_GEMM, US, Step, lost

PINNED_TO_HOST = "Memcpy DtoH (Device -> Pinned)"
TO_DEVICE = "Memcpy HtoD (Pageable -> Device)"


def made_on_the_host(*names: str, between: int = 0) -> Step:
    """Idle from 10 to 70 ms, in which the host runs these operators, 20 ms each, then copies for 1 ms."""
    step = Step().kernel(TENSOR_GEMM, 0, 10 * MS)
    start = 10 * MS
    for name in names:
        step.operator(name, start, start + 20 * MS)
        start += 20 * MS
    for _ in range(between):
        step.operator("aten::mul", start, start + US)
        start += US
    step.operator("aten::to", start, start + 2 * MS)
    step.copy(TO_DEVICE, start + MS, start + 2 * MS, called=start, returned=start + MS)
    return step.kernel(TENSOR_GEMM, start + 2 * MS, 100 * MS)


def test_a_tensor_made_on_the_host_and_copied():
    found = made_on_the_host("aten::randn").causes()["create-on-cpu-then-move"]
    assert lost(found) == 20 * MS
    assert found.where == Place("train.py(31): step", "aten::randn")


def test_cpu_creation_counts_operators_that_change_the_tensor_before_its_copy():
    assert lost(made_on_the_host("aten::zeros", "aten::add").causes()["create-on-cpu-then-move"]) == 40 * MS


def test_a_tensor_that_is_worked_on_for_longer_before_the_copy_is_not_meant():
    assert "create-on-cpu-then-move" not in made_on_the_host("aten::randn", between=5).causes()


def test_a_batch_from_the_loader_is_not_made_to_be_copied():
    step = made_on_the_host("aten::randn")
    step.made.annotation(LOADER, 10 * MS, 30 * MS)
    assert "create-on-cpu-then-move" not in step.causes()


def test_a_tensor_made_on_the_device_is_not_meant():
    step = Step().kernel(TENSOR_GEMM, 0, 10 * MS).operator("aten::randn", 10 * MS, 30 * MS)
    step.kernel(TENSOR_GEMM, 30 * MS, 31 * MS, called=29 * MS).operator("aten::to", 31 * MS, 33 * MS)
    step.copy(TO_DEVICE, 32 * MS, 33 * MS, called=31 * MS).kernel(TENSOR_GEMM, 33 * MS, 100 * MS)
    assert "create-on-cpu-then-move" not in step.causes()


def read_back(reads: str, *, waits: str = "", inside: bool = False) -> Step:
    """A copy to the host that does not wait, then `reads`; `waits` between them, or inside."""
    step = Step().kernel(TENSOR_GEMM, 0, 100 * MS).operator("aten::to", 10 * MS, 12 * MS)
    step.copy(PINNED_TO_HOST, 20 * MS, 21 * MS, called=11 * MS, returned=12 * MS)
    if waits:
        at = (15 if inside else 13) * MS
        step.call(waits, at, at + MS)
    return step.operator(reads, 14 * MS, 17 * MS)


def test_a_copy_that_is_read_at_once_was_not_waited_for():
    (found,) = read_back("aten::sum").summary().unsynced
    assert (found.num, found.where.operator, found.where.function) == (1, "aten::to", "train.py(31): step")


def test_a_copy_that_was_waited_for_may_be_read():
    for call in ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaEventQuery"):
        assert read_back("aten::sum", waits=call).summary().unsynced == []


def test_an_operator_that_waits_itself_reads_in_time():
    assert read_back("aten::item", waits="cudaStreamSynchronize", inside=True).summary().unsynced == []


def test_a_copy_that_is_left_alone_is_no_fault():
    assert read_back("aten::view").summary().unsynced == []


def test_a_kernel_behind_the_copy_reads_nothing():
    step = Step().kernel(TENSOR_GEMM, 0, 20 * MS).operator("aten::to", 10 * MS, 12 * MS)
    step.copy(PINNED_TO_HOST, 20 * MS, 21 * MS, called=11 * MS, returned=12 * MS)
    step.operator("aten::sum", 14 * MS, 17 * MS).kernel(
        TENSOR_GEMM, 21 * MS, 100 * MS, called=15 * MS, returned=16 * MS
    )
    assert step.summary().unsynced == []


def test_a_gap_that_began_while_memory_was_freed_counts_for_as_long_as_that_waited():
    step = (
        Step()
        .kernel(TENSOR_GEMM, 0, 60 * MS)
        .call("cudaFree", 30 * MS, 61 * MS)
        .call("cudaMalloc", 62 * MS, 63 * MS)
    )
    found = step.kernel(TENSOR_GEMM, 80 * MS, 100 * MS).causes()
    assert lost(found["empty-cache-in-loop"]) == 20 * MS
    step = (
        Step()
        .kernel(TENSOR_GEMM, 0, 60 * MS)
        .call("cudaFree", 55 * MS, 61 * MS)
        .call("cudaMalloc", 62 * MS, 63 * MS)
    )
    assert lost(step.kernel(TENSOR_GEMM, 80 * MS, 100 * MS).causes()["empty-cache-in-loop"]) == 6 * MS
