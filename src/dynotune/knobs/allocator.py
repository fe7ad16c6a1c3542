"""Keys of PYTORCH_ALLOC_CONF: how torch's caching allocators hold GPU and pinned host memory."""

from __future__ import annotations

from typing import Literal

from dynotune.knobs.conditions import ON_GPU
from dynotune.schema.knob import AllocConf, Effect, Knob, Scalar


def _key(
    key: str,
    type_: Literal["bool", "int", "float", "str"],
    default: str,
    doc: str,
    hurts: str = "",
    *,
    values: tuple[Scalar, ...] = (),
    minimum: float | None = None,
    effect: Effect = "exact",
) -> Knob:
    return Knob(
        id=f"alloc.{key}",
        site=AllocConf(key),
        type=type_,
        values=values,
        minimum=minimum,
        default=default,
        when="process",
        effect=effect,
        **ON_GPU,
        doc=doc,
        hurts=hurts,
        source="https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-alloc-conf",
    )


_NEWER = "Known to newer versions of torch only; others stop at start and say so."
_NATIVE = "Ignored with alloc.backend=cudaMallocAsync."

KNOBS = (
    _key(
        "expandable_segments",
        "bool",
        "false",
        "Lets segments of GPU memory grow instead of adding new ones, so that sizes that vary leave no slivers.",
        "Experimental. Sharing CUDA tensors between processes may fail with it.",
    ),
    _key(
        "max_split_size_mb",
        "int",
        "no limit",
        "Blocks above this size, in MB, are never split.",
        "A last resort against running out of memory by fragmentation; may cost much. " + _NATIVE,
        minimum=20,
    ),
    _key(
        "max_non_split_rounding_mb",
        "int",
        "20",
        "How much larger than asked, in MB, a cached block may be that is handed out unsplit.",
        "A larger value wastes more of each block. " + _NATIVE,
        minimum=1,
    ),
    _key(
        "garbage_collection_threshold",
        "float",
        "1.0: nothing is reclaimed early",
        "Above this share of its memory, between 0 and 1, the allocator frees old unused blocks a few at a "
        "time, and not all at once with the device waiting.",
        "Blocks freed too early are allocated again, which is slow. " + _NATIVE,
        minimum=0,
    ),
    _key(
        "roundup_power2_divisions",
        "str",
        "sizes are multiples of 512 bytes",
        "Rounds sizes up to one of so many steps between powers of two, so that blocks of nearly equal size "
        "are used for each other. One number, or by size in MB: [256:1,512:2,1024:4,>:8].",
        "Wastes up to one step of each block. " + _NATIVE,
    ),
    _key(
        "large_segment_size_mb",
        "int",
        "20",
        "Size, in MB, of the segments from which blocks of medium size are cut.",
        _NEWER,
        minimum=1,
    ),
    _key(
        "backend",
        "str",
        "native",
        "The allocator itself: torch's own, or that of the CUDA driver, which shares memory between libraries.",
        "With cudaMallocAsync most other keys are ignored, and torch's memory statistics mean nothing.",
        values=("native", "cudaMallocAsync"),
    ),
    _key(
        "release_lock_on_cudamalloc",
        "bool",
        "false",
        "Lets other threads use the allocator while one waits for cudaMalloc.",
        "Matters only where several threads allocate.",
    ),
    _key(
        "graph_capture_record_stream_reuse",
        "bool",
        "false",
        "Reuses memory while a CUDA graph over several streams is captured.",
        "Experimental. " + _NEWER,
    ),
    _key(
        "per_process_memory_fraction",
        "float",
        "1.0",
        "The share of the GPU's memory, between 0 and 1, that the process may take.",
        "Beyond it the program runs out of memory. " + _NEWER,
        minimum=0,
        effect="semantics",
    ),
    _key(
        "throw_on_cudamalloc_oom",
        "bool",
        "false",
        "Refuses an allocation beyond per_process_memory_fraction before it reaches the driver.",
        "The cache is not emptied for another try. " + _NEWER,
        effect="semantics",
    ),
    # Pinned host memory.
    _key(
        "pinned_use_cuda_host_register",
        "bool",
        "false",
        "Allocates pinned host memory as ordinary memory and registers it, instead of cudaHostAlloc.",
        "Pays where pinned memory is allocated again and again.",
    ),
    _key(
        "pinned_num_register_threads",
        "int",
        "1",
        "Threads that touch the pages of pinned memory, at most 128. Needs alloc.pinned_use_cuda_host_register.",
        minimum=1,
    ),
    _key(
        "pinned_use_background_threads",
        "bool",
        "false",
        "Looks in a thread of its own for pinned memory that has become free.",
    ),
    _key(
        "pinned_reserve_segment_size_mb",
        "int",
        "0",
        "Pinned memory, in MB, taken at the start, from which small requests are served.",
        "Taken from the machine whether it is used or not. " + _NEWER,
        minimum=0,
    ),
    _key(
        "pinned_max_round_threshold_mb",
        "int",
        "no limit",
        "Above this size, in MB, pinned blocks are not rounded up to a power of two.",
        _NEWER,
        minimum=0,
    ),
    _key(
        "pinned_max_cached_size_mb",
        "int",
        "no limit",
        "Above this size, in MB, pinned blocks are given back at once instead of cached.",
        "A batch above it is pinned anew each time, which is slow. " + _NEWER,
        minimum=0,
    ),
    _key(
        "pinned_free_catch_all",
        "bool",
        "false",
        "Accepts the return of pinned memory that the allocator does not know.",
        "It hides a fault of the program's. " + _NEWER,
        effect="semantics",
    ),
)
