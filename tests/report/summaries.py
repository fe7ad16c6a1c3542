"""Summaries of traces, written by hand, for the tests of what is shown of them."""

from __future__ import annotations

from typing import Any

from dynotune.schema.facts import Unknown
from dynotune.schema.trace_summary import (
    RANK_PHASES,
    Calls,
    Cause,
    CauseChange,
    Communication,
    Copies,
    DeviceTime,
    Gap,
    Idle,
    KernelClass,
    Kernels,
    Memory,
    Operator,
    Overlap,
    Place,
    Ranks,
    RankTime,
    Shares,
    Straggler,
    TraceDifference,
    TraceSummary,
)

ITEM = Place("/home/me/project/train.py(31): step", "aten::item", "cudaStreamSynchronize")
LOADER = Place(
    "/opt/conda/lib/python3.12/site-packages/torch/utils/data/dataloader.py(733): __next__",
    "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
)
ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"
)


def device(rank: int | None = None, index: int = 0, *, slower: float = 0.0, **changes: Any) -> DeviceTime:
    """A device of which 142 ms were recorded: 62% compute, 8% exposed copies, 30% idle."""
    fields: dict[str, Any] = {
        "rank": rank,
        "device": index,
        "name": "NVIDIA H100 80GB HBM3",
        "window_s": 0.142,
        "busy_s": 0.0994,
        "compute_s": 0.088 - slower,
        "copy_s": 0.0124,
        "communication_s": 0.0 + slower,
        "idle_s": 0.0426,
        "overlap": Overlap(
            compute_s=0.087 - slower, copy_s=0.0114, compute_and_copy_s=0.001, communication_s=slower
        ),
        "idle": Idle(host_s=0.0136, loader_s=0.02, sync_s=0.006, kernel_s=0.003),
    }
    return DeviceTime(**(fields | changes))


def kernels(rank: int | None = None) -> Kernels:
    return Kernels(
        rank=rank,
        num=3630,
        total_s=0.0912,
        mean_s=25.1e-6,
        median_s=6.3e-6,
        per_s=25563.0,
        per_step=1210.0,
        num_launches=3630,
        in_graphs=0,
        mean_queue_depth=12.4,
        max_queue_depth=1011,
        tensor_core_share=0.12,
        classes=[
            KernelClass(
                name="matmul", num=600, total_s=0.0512, share=0.561, largest="ampere_sgemm_128x64_tn"
            ),
            KernelClass(name="elementwise", num=2400, total_s=0.03, share=0.329, largest=ELEMENTWISE),
            KernelClass(
                name="optimizer", num=630, total_s=0.01, share=0.11, largest="multi_tensor_apply_kernel"
            ),
        ],
    )


def copies(rank: int | None = None) -> list[Copies]:
    return [
        Copies(
            rank=rank,
            kind="HtoD",
            pinned=False,
            num=6,
            num_bytes=77_000_000,
            total_s=0.0119,
            bytes_per_s=6.47e9,
            exposed_s=0.0112,
            median_bytes=12_845_056,
        ),
        Copies(
            rank=rank,
            kind="DtoH",
            pinned=None,
            num=3,
            num_bytes=12,
            total_s=5.1e-6,
            bytes_per_s=2.35e6,
            exposed_s=5.1e-6,
            median_bytes=4,
        ),
    ]


def summary(**changes: Any) -> TraceSummary:
    """One rank, three steps, with something to show everywhere, with changes."""
    fields: dict[str, Any] = {
        "files": ["train.json.gz"],
        "recorder": "torch.profiler",
        "verdict": "The GPU is idle for 30% of a step, and most of that waits for the DataLoader.",
        "window_s": 0.142,
        "num_steps": 3,
        "step_source": "profiler",
        "step_s": [0.0471, 0.0473, 0.0474],
        "shares": Shares(
            compute=0.62,
            exposed_copy=0.08,
            exposed_communication=0.0,
            idle_host=0.096,
            idle_loader=0.14,
            idle_sync=0.043,
            idle_kernel=0.021,
            idle_other=0.0,
        ),
        "causes": [
            Cause(
                id="loader-bound",
                lost_s=0.02,
                share=0.14,
                claim="The device waits for the next batch, which the program loads by itself.",
                where=LOADER,
                evidence=["3 gaps of 6.67 ms, 99% of each inside __next__"],
            ),
            Cause(
                id="sync-per-step",
                lost_s=0.006,
                share=0.043,
                claim="The host waits for the device once a step, and the queue runs dry.",
                where=ITEM,
            ),
            Cause(
                id="pin-memory-off",
                lost_s=0.0112,
                share=0.079,
                claim="Batches are copied from pageable memory at 6.5 GB/s while nothing else runs.",
                where=Place("/home/me/project/train.py(24): step", "aten::to", "cudaMemcpyAsync"),
            ),
        ],
        "devices": [device()],
        "gaps": [
            Gap(rank=None, device=0, start_s=0.0403, duration_s=0.0067, cause="loader", where=LOADER),
            Gap(rank=None, device=0, start_s=0.0851, duration_s=0.0009, cause="sync", where=ITEM),
        ],
        "copies": copies(),
        "syncs": [Calls(rank=None, call="cudaStreamSynchronize", num=3, total_s=0.031, where=ITEM)],
        "allocations": [
            Calls(rank=None, call="cudaMalloc", num=2, total_s=0.0011, where=Place("", "aten::empty_strided"))
        ],
        "kernels": [kernels()],
        "communication": [],
        "ranks": None,
        "operators": [
            Operator(name="aten::convolution_backward", num=60, self_s=0.0132),
            Operator(name="Optimizer.step#AdamW.step", num=3, self_s=0.0071),
        ],
        "memory": [
            Memory(
                rank=None,
                device=0,
                peak_allocated_bytes=21 * 2**30,
                peak_reserved_bytes=24 * 2**30,
                num_allocations=912,
            )
        ],
        "unknown": {"places": Unknown("stacks were not recorded (with_stack=True)")},
        "notes": ["Cut short: everything up to event 40,312 counts."],
    }
    return TraceSummary(**(fields | changes))


def of_ranks(num: int, **changes: Any) -> TraceSummary:
    """As many ranks of one job; the last one is the straggler."""
    ranks = range(num)
    fields: dict[str, Any] = {
        "files": [f"rank{rank}.json.gz" for rank in ranks],
        "devices": [device(rank, rank, slower=0.002 * (num - rank)) for rank in ranks],
        "kernels": [kernels(rank) for rank in ranks],
        "copies": [each for rank in ranks for each in copies(rank)],
        "syncs": [
            Calls(rank=rank, call="cudaStreamSynchronize", num=3, total_s=0.031 - rank * 0.001, where=ITEM)
            for rank in ranks
        ],
        "communication": [
            Communication(rank=rank, num=12, total_s=0.03, exposed_s=0.002 * (num - rank), hidden_s=0.01)
            for rank in ranks
        ],
        "ranks": Ranks(
            ranks=[
                RankTime(
                    rank=rank,
                    step_s=0.0473,
                    busy_s=0.0331,
                    waits_s=0.002 * (num - 1 - rank),
                    clock_offset_s=rank * -1.5e-5,
                    phase_s={phase: 1e-3 * (rank + at) for at, phase in enumerate(RANK_PHASES)},
                )
                for rank in ranks
            ],
            stragglers=[Straggler(rank=num - 1, phases=["backward"], late_s=0.002)],
            imbalance=1.12,
            aligned_by="collectives",
        ),
    }
    return summary(**(fields | changes))


def on_the_host(**changes: Any) -> TraceSummary:
    """A trace of the CPU alone, in which nothing repeats."""
    fields: dict[str, Any] = {
        "verdict": "No GPU took part: of the time on the host, 71% goes to aten::mkldnn_convolution.",
        "num_steps": None,
        "step_source": None,
        "step_s": [],
        "shares": None,
        **{
            name: []
            for name in ("causes", "devices", "gaps", "copies", "syncs", "allocations", "kernels", "memory")
        },
        "unknown": {"devices": Unknown("the trace holds no device activity")},
        "notes": [],
    }
    return summary(**(fields | changes))


def difference(**changes) -> TraceDifference:
    before = summary()
    after = summary(
        files=["after.json.gz"],
        shares=Shares(
            compute=0.75,
            exposed_copy=0.1,
            exposed_communication=0.0,
            idle_host=0.15,
            idle_loader=0.0,
            idle_sync=0.0,
            idle_kernel=0.0,
            idle_other=0.0,
        ),
    )
    fields = {
        "before": before,
        "after": after,
        "per": "step",
        "before_s": 0.0473,
        "after_s": 0.039,
        "changes": [
            CauseChange(id="loader-bound", before_s=0.0066, after_s=0.0),
            CauseChange(id="sync-per-step", before_s=0.002, after_s=0.0021, where=ITEM),
        ],
        "verdict": "A step took 47.3 ms before and 39 ms after.",
    }
    return TraceDifference(**(fields | changes))
