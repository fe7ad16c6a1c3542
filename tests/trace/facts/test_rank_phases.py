"""The rank that holds the others up by its own work, and in which phases of a step."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynotune.schema.trace_summary import RANK_PHASES, RankPhase, Ranks, Straggler
from dynotune.trace.facts import intervals, rank_phases, ranks, steps
from dynotune.trace.facts.rank_phases import beyond_chance, late, slow_ranks
from dynotune.trace.timeline import Timeline

from ..made import Made

MS = 1_000_000
NUM_STEPS = 9
USUAL: dict[RankPhase, int] = {
    "input": 2,
    "upload": 0,
    "forward": 3,
    "backward": 5,
    "optimizer": 2,
    "other": 1,
}
ON_HOST: tuple[RankPhase, ...] = ("input", "forward", "backward", "optimizer", "other")
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
NONE = np.empty((0, 2), dtype=np.int64)
Delays = dict[tuple[int, int], dict[RankPhase, int]]
"""Milliseconds beyond the usual, by rank and step."""


def own_ms(delays: Delays, rank: int, step: int) -> dict[RankPhase, int]:
    more = delays.get((rank, step), {})
    return {phase: usual + more.get(phase, 0) for phase, usual in USUAL.items()}


def job(
    num_ranks: int, delays: Delays, shifts: Sequence[int] = (0, 0, 0, 0), num_steps: int = NUM_STEPS
) -> list[Timeline]:
    """Ranks on the host. All go on when the last has joined the exchange, which takes a millisecond from
    there."""
    made = [Made(rank=rank) for rank in range(num_ranks)]
    released = 0
    for step in range(num_steps):
        joined = []
        for rank, one in enumerate(made):
            own = own_ms(delays, rank, step)
            at = released + shifts[rank]
            one.annotation("Optimizer.step#SGD.step", at, at + own["optimizer"] * MS)
            at += (own["optimizer"] + own["other"]) * MS
            one.annotation(LOADER, at, at + own["input"] * MS)
            at += own["input"] * MS
            # The delay lies after the operator, in which nothing is under way: as where a program sleeps.
            one.annotation("DistributedDataParallel.forward", at, at + own["forward"] * MS)
            one.operator("aten::mm", at, at + 2 * MS)
            at += own["forward"] * MS
            one.operator("autograd::engine::evaluate_function: MmBackward0", at, at + 2 * MS)
            at += own["backward"] * MS
            one.operator("autograd::engine::evaluate_function: AccumulateGrad", at - MS, at)
            joined.append(at - shifts[rank])
        ended = max(joined) + MS
        for rank, one in enumerate(made):
            one.annotation(
                "gloo:all_reduce", joined[rank] + shifts[rank], ended + shifts[rank], thread="gloo"
            )
            one.annotation(f"ProfilerStep#{step}", released + shifts[rank], ended + shifts[rank])
        released = ended
    return [one.timeline() for one in made]


def compared(timelines: Sequence[Timeline]) -> Ranks:
    found = [steps.find(timeline) for timeline in timelines]
    windows = [steps.window(timeline, own) for timeline, own in zip(timelines, found, strict=True)]
    answer = ranks.compare(timelines, windows, found)
    assert answer is not None
    return answer


def named(found: Ranks) -> list[tuple[int, list[RankPhase]]]:
    return [(one.rank, one.phases) for one in found.stragglers]


def always(rank: int, num_steps: int = NUM_STEPS, **late_ms: int) -> Delays:
    return {(rank, step): late_ms for step in range(num_steps)}  # type: ignore[misc]


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
@pytest.mark.parametrize("phase", ON_HOST)
def test_the_rank_that_works_longer_in_each_step_is_named_with_its_phase(num_ranks, phase):
    found = compared(job(num_ranks, always(num_ranks - 1, **{phase: 20})))
    assert named(found) == [(num_ranks - 1, [phase])]
    assert found.stragglers[0].late_s == pytest.approx(20e-3)
    assert found.ranks[0].phase_s == {each: pytest.approx(USUAL[each] / 1e3) for each in RANK_PHASES}


def test_longer_samples_take_longer_in_two_phases():
    found = compared(job(3, always(1, forward=10, backward=10)))
    assert named(found) == [(1, ["forward", "backward"])]
    assert found.stragglers[0].late_s == pytest.approx(20e-3)


def test_a_rank_that_is_slow_altogether_is_named_alone():
    found = compared(job(3, always(1, input=10, forward=10, backward=10, optimizer=10)))
    assert found.stragglers == [Straggler(rank=1, phases=[], late_s=pytest.approx(40e-3))]


def test_nobody_is_named_for_one_slow_step():
    found = compared(job(4, {(2, 4): {"forward": 400}}))
    assert found.stragglers == []


def test_of_few_steps_the_rank_is_named_without_a_phase():
    found = compared(job(3, always(1, backward=20), num_steps=4))
    assert named(found) == [(1, [])]


def test_the_phase_is_told_although_one_step_is_out_of_line():
    delays = always(1, backward=20) | {(0, 5): {"forward": 60}}
    found = compared(job(3, delays))
    assert named(found) == [(1, ["backward"])]


NOBODY_SHIFTED = (0,) * 8


@pytest.mark.parametrize("other_ms", [20, 30])
def test_each_of_two_late_ranks_of_eight_is_named_with_its_phase(other_ms):
    found = compared(job(8, always(1, backward=20) | always(5, input=other_ms), NOBODY_SHIFTED))
    assert sorted(named(found)) == [(1, ["backward"]), (5, ["input"])]
    assert {one.rank: one.late_s for one in found.stragglers} == {
        1: pytest.approx(20e-3),
        5: pytest.approx(other_ms / 1e3),
    }


def test_behind_a_slow_rank_one_of_less_than_half_its_delay_is_not_named():
    found = compared(job(8, always(1, backward=20) | always(5, input=60), NOBODY_SHIFTED))
    assert named(found) == [(5, ["input"])]


@pytest.mark.parametrize(("num_ranks", "num_late"), [(8, 2), (12, 3), (20, 5), (32, 8)])
@pytest.mark.parametrize("num_steps", [3, 4, 6, 9])
def test_up_to_a_quarter_of_the_ranks_is_named_however_few_steps_are_known(num_ranks, num_late, num_steps):
    own = (
        np.full((num_ranks, num_steps, 1), 10 * MS, dtype=np.int64)
        + np.arange(num_ranks)[:, None, None] * 1000
    )
    own[:num_late] += 5 * MS
    assert sorted(slow_ranks(own)) == list(range(num_late))


def test_more_late_ranks_than_a_quarter_are_not_told_from_ranks_that_differ():
    delays = always(1, backward=20) | always(3, backward=20) | always(5, backward=20)
    assert compared(job(8, delays, NOBODY_SHIFTED)).stragglers == []


@settings(deadline=None, max_examples=25)
@given(
    shifts=st.lists(st.integers(-(10**12), 10**12), min_size=3, max_size=3),
    order=st.permutations(range(3)),
    phase=st.sampled_from(ON_HOST),
    noise=st.lists(st.tuples(*[st.integers(0, 3)] * 3), min_size=NUM_STEPS, max_size=NUM_STEPS),
)
def test_neither_clocks_nor_the_order_of_files_change_who_is_late(shifts, order, phase, noise):
    delays = {
        (rank, step): {"forward": each} for step, row in enumerate(noise) for rank, each in enumerate(row)
    }
    for step in range(NUM_STEPS):
        delays[2, step] = {phase: 30}
    found = compared([job(3, delays, shifts)[at] for at in order])
    usual = compared(job(3, delays))
    assert named(found) == [(2, [phase])]
    assert found.stragglers[0].late_s == pytest.approx(usual.stragglers[0].late_s)
    by_rank = {row.rank: row.phase_s for row in found.ranks}
    assert by_rank == {
        row.rank: {name: pytest.approx(own) for name, own in row.phase_s.items()} for row in usual.ranks
    }


@given(
    late_ms=st.lists(st.tuples(st.sampled_from(ON_HOST), st.integers(0, 2), st.integers(0, 50)), max_size=8)
)
def test_phases_and_blocked_time_sum_to_the_window_and_do_not_overlap(late_ms):
    delays = {(rank, step): {phase: late} for step, (phase, rank, late) in enumerate(late_ms)}
    timeline = job(3, delays)[0]
    window = steps.window(timeline, steps.find(timeline))
    blocked = np.array([[window[0] + 1, window[0] + 2 * MS]], dtype=np.int64)
    collectives = blocked[:, 0], blocked[:, 1], blocked[:, 0]
    both = rank_phases.own_sets(timeline, window, collectives, blocked)
    assert both is not None
    for sets in both:
        assert sum(map(intervals.length, (*sets, blocked))) == window[1] - window[0]


# On a device


def on_device(rank: int, delays: Delays, *, kernels_ms: dict[RankPhase, int], num_ranks: int = 3) -> Timeline:
    """A rank whose host queues one kernel a phase and two exchanges; the others' joins are those of `job`'s
    rules."""
    made, released, correlation = Made(rank=rank), 0, 0
    for step in range(NUM_STEPS):
        ready, first = [], []
        for each in range(num_ranks):
            own = own_ms(delays, each, step)
            before = (
                released
                + sum(own[phase] for phase in ("optimizer", "other", "input", "upload", "forward")) * MS
            )
            first.append(before + MS)
            # On the device: when the kernel of the backward pass ends, however early the host queued it.
            device = kernels_ms if each == rank else {}
            ready.append(before + max(own["backward"], device.get("backward", 0)) * MS)
        at, own = released, own_ms(delays, rank, step)
        for phase, name in (
            ("optimizer", "Optimizer.step#SGD.step"),
            ("other", ""),
            ("input", LOADER),
            ("upload", ""),
            ("forward", "DistributedDataParallel.forward"),
            ("backward", ""),
        ):
            end = at + own[phase] * MS
            if name:
                made.annotation(name, at, end)
            if phase == "backward":
                made.operator(
                    "autograd::engine::evaluate_function: MmBackward0", at, at + MS, thread="autograd"
                )
                made.operator(
                    "autograd::engine::evaluate_function: AccumulateGrad",
                    end - MS // 2,
                    end,
                    thread="autograd",
                )
                for bucket, (joined, last) in enumerate(((first, max(first)), (ready, max(ready)))):
                    correlation += 1
                    asked = joined[rank] - 300
                    made.operator("c10d::allreduce_", asked, asked + 250, thread="autograd")
                    made.launch(
                        "cudaLaunchKernelExC", joined[rank] - 200, joined[rank] - 100, correlation=correlation
                    )
                    made.kernel(
                        ALL_REDUCE,
                        joined[rank],
                        last + MS // (4 - 2 * bucket),
                        correlation=correlation,
                        stream=9,
                    )
            elif phase in ("forward", "optimizer"):
                correlation += 1
                made.launch("cudaLaunchKernel", at, at + 100, correlation=correlation)
                made.kernel("gemm", at + 200, at + MS, correlation=correlation)
            at = end
        made.annotation(f"ProfilerStep#{step}", released, max(ready) + MS // 2)
        released = max(ready) + MS // 2
    return dataclasses.replace(made.timeline(), clock_base_ns=0)


@pytest.mark.parametrize("phase", ["input", "upload", "forward", "backward", "optimizer"])
def test_on_devices_the_phase_is_that_in_which_the_host_keeps_its_device_waiting(phase):
    delays = always(1, **{phase: 20})
    found = compared([on_device(rank, delays, kernels_ms={}) for rank in range(3)])
    assert named(found) == [(1, [phase])]
    assert found.stragglers[0].late_s == pytest.approx(20e-3, rel=0.05)


def test_on_a_device_work_belongs_to_the_phase_that_queued_it():
    # The host queues the forward pass at once and goes on to the backward one; the device is at it for
    # longer.
    made = Made()
    made.annotation("DistributedDataParallel.forward", 0, 10).launch("cudaLaunchKernel", 1, 2, correlation=1)
    made.operator("autograd::engine::evaluate_function: MmBackward0", 10, 30)
    made.launch("cudaLaunchKernel", 11, 12, correlation=2).kernel("gemm", 5, 60, correlation=1)
    made.kernel("gemm", 60, 70, correlation=2).copy("Memcpy HtoD (Pinned -> Device)", 65, 80, correlation=2)
    both = rank_phases.own_sets(made.timeline(), (0, 100), (NONE[:, 0],) * 3, NONE)
    assert both is not None
    sets, _ = both
    own = dict(zip(RANK_PHASES, map(intervals.length, sets), strict=True))
    assert own == {"input": 0, "upload": 10, "forward": 60, "backward": 10, "optimizer": 20, "other": 0}


# The arithmetic


@pytest.mark.parametrize(
    ("num", "of", "chance", "tries", "is_beyond"),
    [(4, 4, 1 / 2, 1, False), (5, 5, 1 / 2, 1, True), (8, 9, 1 / 2, 2, True), (7, 9, 1 / 2, 2, False),
     (6, 9, 1 / 4, 4, True), (5, 9, 1 / 4, 4, False), (1100, 2000, 1 / 2, 1, True), (0, 9, 1 / 4, 4, False)],
)  # fmt: skip
def test_chance_is_what_happens_once_in_twenty(num, of, chance, tries, is_beyond):
    assert beyond_chance(num, of, chance, tries) is is_beyond


@given(
    own=st.lists(st.lists(st.integers(0, 10**9), min_size=6, max_size=6), min_size=6, max_size=6),
    data=st.data(),
)
def test_ranks_are_not_late_when_all_work_longer(own, data):
    alike = np.array([own, own, own], dtype=np.int64)
    rank = data.draw(st.integers(0, 2))
    assert slow_ranks(alike) == []
    assert late(alike, rank) == ([], 0)


# Hosts that run ahead of their devices


def ahead(delays: Delays, offset_ms: int = 0, *, kernel_us: Sequence[int] = (50, 50)) -> list[Timeline]:
    """Two ranks whose hosts never wait: each issues its steps at its own pace, and the devices meet in
    all-reduces.

    The second begins `offset_ms` later. A device runs what is queued at once, and in a collective waits for
    the other.
    """
    made = [Made(rank=rank) for rank in range(2)]
    at, free, number = [0, offset_ms * MS], [0, 0], 0
    names: dict[RankPhase, str] = {"optimizer": "Optimizer.step#SGD.step", "input": LOADER}
    names["forward"] = "DistributedDataParallel.forward"
    for step in range(NUM_STEPS):
        begun, joined, asked = list(at), [0, 0], [0, 0]
        for rank, one in enumerate(made):
            for phase in ("optimizer", "other", "input", "upload", "forward", "backward"):
                end = at[rank] + own_ms(delays, rank, step)[phase] * MS
                if phase in names:
                    one.annotation(names[phase], at[rank], end)
                if phase == "backward":
                    one.operator(
                        "autograd::engine::evaluate_function: MmBackward0", at[rank], end, thread="autograd"
                    )
                    one.operator("c10d::allreduce_", end - 300, end - 100, thread="autograd")
                # The first delay of a phase lies before what it issues, as where a program sleeps.
                for issued in range(end - 10 * 100_000, end - 500, 100_000) if end > at[rank] else ():
                    number += 1
                    one.launch("cudaLaunchKernel", issued, issued + 5_000, correlation=number)
                    free[rank] = max(free[rank], issued + 10_000)
                    one.kernel("gemm", free[rank], free[rank] + kernel_us[rank] * 1000, correlation=number)
                    free[rank] += kernel_us[rank] * 1000
                at[rank] = end
            asked[rank], joined[rank] = at[rank] - 200, max(free[rank], at[rank])
        for rank, one in enumerate(made):
            number += 1
            one.launch(
                "cudaLaunchKernelExC", asked[rank], asked[rank] + 100, correlation=number, thread="autograd"
            )
            free[rank] = max(joined) + 20_000
            one.kernel(ALL_REDUCE, joined[rank], free[rank], correlation=number, stream=9)
            one.annotation(f"ProfilerStep#{step}", begun[rank], at[rank])
    return [dataclasses.replace(one.timeline(), clock_base_ns=0) for one in made]


@pytest.mark.parametrize("offset_ms", [3, 13, 40])
def test_a_host_that_began_later_holds_up_nobody_step_by_step(offset_ms):
    found = compared(ahead({}, offset_ms))
    assert found.stragglers == []


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("phase", ["input", "upload", "forward", "backward", "optimizer"])
@pytest.mark.parametrize("offset_ms", [0, 13])
def test_of_hosts_that_run_ahead_the_slower_one_is_named_with_its_phase(rank, phase, offset_ms):
    found = compared(ahead(always(rank, **{phase: 20}), offset_ms))
    assert named(found) == [(rank, [phase])]
    assert found.stragglers[0].late_s == pytest.approx(20e-3, rel=0.05)


def test_own_times_of_a_late_rank_and_of_one_that_waits_for_it_are_those_of_their_hosts():
    late, waiting = (row.phase_s for row in compared(ahead(always(0, backward=20))).ranks)
    assert late["backward"] - waiting["backward"] == pytest.approx(20e-3, rel=0.05)
    assert late["forward"] == pytest.approx(waiting["forward"], abs=0.2e-3) == pytest.approx(3e-3, abs=0.2e-3)


def test_a_device_that_works_longer_is_late_by_what_the_others_hosts_do_not_take_anyway():
    # The second's device works for 50 ms a step, the first's for 2.5 ms beside a host of 13 ms.
    found = compared(ahead({}, kernel_us=(50, 1_000)))
    assert [one.rank for one in found.stragglers] == [1]
    assert found.stragglers[0].late_s == pytest.approx((50 - 13) * 1e-3, rel=0.05)
    # Within what hosts take, more work costs nothing.
    assert compared(ahead({}, kernel_us=(50, 200))).stragglers == []


def test_ranks_that_differ_among_themselves_by_as_much_name_nobody():
    rows = np.zeros((4, 9, 1), dtype=np.int64) + np.array([10, 25, 38, 30])[:, None, None]
    assert slow_ranks(rows) == []
    assert slow_ranks(rows + np.array([0, 20, 0, 0])[:, None, None]) == []
    assert slow_ranks(rows + np.array([0, 0, 20, 0])[:, None, None]) == [2]
