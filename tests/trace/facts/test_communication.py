"""A rank's collectives: their time, and what of it other work hides."""

from __future__ import annotations

from dynotune.trace.facts import communication
from dynotune.trace.timeline import DeviceKind

from ..made import Made

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ALL_GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def test_communication_is_hidden_where_anything_else_runs_on_the_device() -> None:
    made = Made(rank=1).kernel(ALL_REDUCE, 0, 100, stream=20).kernel(ALL_GATHER, 50, 120, stream=21)
    made.kernel("gemm", 10, 30).kernel("gemm", 0, 120, device=1).copy(
        "Memcpy HtoD (Pinned -> Device)", 90, 130, stream=9
    )
    made.device.append((40, 45, DeviceKind.SET, "Memset (Device)", 0, 7, -1, 64))
    row = communication.facts(made.timeline(), (0, 110))
    assert row is not None
    assert (row.rank, row.num, row.total_s, row.exposed_s, row.hidden_s) == (1, 2, 110e-9, 65e-9, 45e-9)


def test_without_collectives_there_is_no_communication() -> None:
    made = Made().kernel("gemm", 0, 100).kernel(ALL_REDUCE, 100, 200)
    assert communication.facts(made.timeline(), (0, 100)) is None
