from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dynotune.trace.facts.busy_time import Busy, busy

from ..made import Made

KINDS = {
    "gemm": "compute",
    "Memset (Device)": "compute",
    "Memcpy HtoD (Pinned -> Device)": "copy",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL": "communication",
}


def made_of(*spans: tuple[str, int, int]) -> Made:
    made = Made()
    for stream, (name, start, end) in enumerate(spans):
        (made.copy if name.startswith("Memcpy") else made.kernel)(name, start, end, stream=stream)
    return made


def of(*spans: tuple[str, int, int], window: tuple[int, int] = (0, 100)) -> Busy:
    return busy(made_of(*spans).timeline(), 0, window)


GEMM, SET, COPY, ALL_REDUCE = KINDS


def test_each_overlap_of_two_kinds_and_of_all_three_is_told_apart():
    found = of((GEMM, 0, 40), (COPY, 30, 70), (ALL_REDUCE, 35, 50), (ALL_REDUCE, 65, 80), (GEMM, 75, 90))
    assert found == Busy(
        compute_ns=30 + 10,
        copy_ns=15,
        communication_ns=5,
        compute_and_copy_ns=5,
        compute_and_communication_ns=5,
        copy_and_communication_ns=10 + 5,
        all_ns=5,
    )
    assert (found.any_compute_ns, found.any_copy_ns, found.any_communication_ns) == (55, 40, 30)
    assert found.total_ns == 90


def test_kernels_of_one_kind_that_run_at_once_count_once():
    assert of((GEMM, 10, 50), (GEMM, 20, 60), (GEMM, 60, 70)).compute_ns == 60


def test_setting_memory_is_compute():
    assert of((SET, 10, 50)).compute_ns == 40


def test_only_the_part_inside_the_window_counts():
    assert of((GEMM, 0, 40), (COPY, 30, 70), window=(35, 60)) == Busy(0, 20, 0, 5, 0, 0, 0)


def test_a_device_that_did_nothing_in_the_window_was_not_busy():
    assert of((GEMM, 0, 10), window=(50, 60)).total_ns == 0


def test_other_devices_do_not_count():
    timeline = Made().kernel(GEMM, 0, 10).kernel(GEMM, 0, 50, device=1).timeline()
    assert (busy(timeline, 0, (0, 100)).total_ns, busy(timeline, 1, (0, 100)).total_ns) == (10, 50)


@given(
    st.lists(st.tuples(st.sampled_from(list(KINDS)), st.integers(0, 90), st.integers(0, 30)), max_size=15),
    st.integers(0, 60),
    st.integers(1, 60),
)
def test_every_nanosecond_is_counted_where_it_belongs(
    spans: list[tuple[str, int, int]], start: int, length: int
):
    spans = [(name, begin, begin + lasts) for name, begin, lasts in spans]
    found = of(*spans, window=(start, start + length))
    counted: dict[frozenset[str], int] = {}
    for time in range(start, start + length):
        running = frozenset(KINDS[name] for name, begin, end in spans if begin <= time < end)
        counted[running] = counted.get(running, 0) + 1
    compute, copy, communication = "compute", "copy", "communication"
    assert found == Busy(
        *(
            counted.get(frozenset(kinds), 0)
            for kinds in (
                [compute],
                [copy],
                [communication],
                [compute, copy],
                [compute, communication],
                [copy, communication],
                [compute, copy, communication],
            )
        )
    )
