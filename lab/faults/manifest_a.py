"""Programs with faults of data, transfers, memory and the host."""

from .fault import Fault

CPU, CUDA, BOTH = ("cpu",), ("cuda",), ("cpu", "cuda")
ALL = (10, 30, 60)
# Beside a step that the device works on, a copy or a host's stage can cost no more than as much again.
HIDDEN = (10, 30)
PRESENT = (1,)

# Loading that keeps a core busy slows a step that wants them all: on few cores it has no small dose.
LOADER = (
    Fault("loader-bound", "loader_bound.py", BOTH, ALL, notes="Sleeps in the dataset; two workers."),
    Fault(
        "num-workers-zero",
        "num_workers_zero.py",
        BOTH,
        ALL,
        notes="Sleeps in the dataset; the twin: four workers.",
    ),
    Fault(
        "num-workers-too-many",
        "num_workers_too_many.py",
        BOTH,
        (30, 60),
        implies=("loader-bound",),
        notes=(
            "Each worker unpacks each shard for itself: three to eight workers a core; the twin has one "
            "a core."
        ),
    ),
    Fault(
        "persistent-workers",
        "persistent_workers.py",
        BOTH,
        ALL,
        notes="Epochs of a few to some hundred steps; a worker takes 0.25 s to open its data.",
    ),
    Fault("collate-heavy", "collate_heavy.py", CPU, (30, 60), implies=("loader-bound",)),
    Fault("collate-heavy", "collate_heavy.py", CUDA, ALL, implies=("loader-bound",)),
    Fault("decode-bound", "decode_bound.py", CPU, (30, 60), implies=("loader-bound",)),
    Fault("decode-bound", "decode_bound.py", CUDA, ALL, implies=("loader-bound",)),
    *(
        Fault(id_, "items_made.py", BOTH, (60,), args=("--made", made), implies=("loader-bound", *implies))
        for id_, made, *implies in (
            ("archive-opened-per-item", "archive", "file-opened-per-item"),
            ("table-read-per-item", "table"),
            ("array-copied-per-item", "whole"),
            ("tokenized-per-item", "tokens"),
            ("resized-per-item", "smaller", "decode-bound"),
            ("transform-heavy", "transformed"),
            ("locked-per-item", "locked"),
            ("handover-heavy", "rows"),
        )
    ),
    Fault("iterable-duplicated", "items_made.py", BOTH, PRESENT, args=("--made", "stream")),
    Fault("padding-waste", "items_made.py", BOTH, (30,), args=("--made", "padded")),
    Fault(
        "cow-growth",
        "cow_growth.py",
        BOTH,
        PRESENT,
        notes="Workers grow by some MB a second for a minute or so, until they own the list.",
    ),
    Fault(
        "prefetch-factor",
        "prefetch_factor.py",
        BOTH,
        ALL,
        implies=("loader-bound",),
        notes="One batch in 25 is slow; the window must hold some hundred steps. The twin prefetches 20.",
    ),
)
TRANSFERS = (
    Fault(
        "pin-memory-off",
        "pin_memory_off.py",
        CUDA,
        HIDDEN,
        implies=("h2d-blocking", "h2d-not-overlapped"),
        notes=(
            "A copy from pageable memory blocks and is in line by its nature; the twin's pinned copy is "
            "in line too."
        ),
    ),
    Fault(
        "h2d-blocking", "h2d_blocking.py", CUDA, HIDDEN, notes="Host work after the copy, hidden in the twin."
    ),
    Fault(
        "h2d-not-overlapped",
        "h2d_not_overlapped.py",
        CUDA,
        HIDDEN,
        notes="The twin copies ahead on a stream.",
    ),
    Fault(
        "transfer-float",
        "transfer_float.py",
        CUDA,
        ALL,
        implies=("h2d-not-overlapped",),
        notes="Copies ahead on a stream, but the copies take longer than the step.",
    ),
    Fault("many-small-copies", "many_small_copies.py", CUDA, ALL, implies=("launch-bound", "host-bound")),
    Fault(
        "create-on-cpu-then-move",
        "create_on_cpu_then_move.py",
        CUDA,
        ALL,
        implies=("h2d-blocking", "pin-memory-off", "host-bound"),
    ),
    Fault("pin-in-hot-loop", "pin_in_hot_loop.py", CUDA, ALL, implies=("host-bound",)),
    Fault("sync-per-step", "sync_item.py", CUDA, ALL, notes="Hundreds of .item() at the end of the step."),
    Fault("sync-per-step", "sync_boolean_mask.py", CUDA, ALL, notes="Boolean indexing; the twin multiplies."),
    Fault("sync-per-step", "sync_branch.py", CUDA, ALL, notes="`if tensor > x` for each of hundreds."),
    Fault("d2h-nonblocking-unsynced", "d2h_unsynced.py", CUDA, PRESENT, notes="Wrong numbers, no time."),
)
MEMORY = (
    Fault(
        "empty-cache-in-loop",
        "empty_cache_in_loop.py",
        CUDA,
        (30, 60),
        implies=("sync-per-step",),
        notes=(
            "The step's own blocks may cost more than 30 already; scratch blocks add to them up to the dose."
        ),
    ),
    Fault(
        "alloc-retries",
        "alloc_retries.py",
        CUDA,
        HIDDEN,
        notes="Two streams within one limit; each few steps both caches are freed.",
    ),
    Fault(
        "memory-segments",
        "fragmentation.py",
        CUDA,
        PRESENT,
        notes="400 pieces of 2 MB kept inside larger blocks.",
    ),
    Fault(
        "leak-graph-kept",
        "leak_graph_kept.py",
        BOTH,
        PRESENT,
        notes="0.5 MB a step on the CPU, 4 MB on CUDA.",
    ),
)
HOST = (
    Fault(
        "omp-threads-1",
        "omp_threads_one.py",
        CPU,
        (40,),
        env={"OMP_NUM_THREADS": "1"},
        notes="40 on two cores.",
    ),
    Fault(
        "cpu-oversubscribed", "cpu_oversubscribed.py", CPU, ALL, notes="Two, four or eight threads a core."
    ),
    Fault(
        "optimizer-forloop",
        "optimizer_forloop.py",
        CPU,
        HIDDEN,
        notes="The dose: the share of scales not fused.",
    ),
    Fault("optimizer-forloop", "optimizer_forloop.py", CUDA, ALL, implies=("host-bound", "launch-bound")),
    Fault("profiler-left-on", "profiler_left_on.py", CPU, (10,), args=("--width", "320")),
    Fault("profiler-left-on", "profiler_left_on.py", CPU, (30,), args=("--width", "112")),
    Fault(
        "profiler-left-on",
        "profiler_left_on.py",
        CUDA,
        (30,),
        args=("--width", "1024"),
        implies=("host-bound", "launch-bound"),
        notes=(
            "The device's work is about as long as the host's without the profiler: it must be, to be "
            "slowed by it."
        ),
    ),
    *(
        Fault(
            "cupti-left-attached",
            program,
            CUDA,
            (20,),
            implies=("host-bound", "launch-bound"),
            notes="A flag: a few steps are profiled or none. The cost is an estimate; the CPU has no CUPTI.",
        )
        for program in ("profiled_earlier.py", "profiled_by_callback.py")
    ),
    Fault("debug-flags-left-on", "anomaly_left_on.py", CPU, (30,), args=("--width", "576")),
    Fault("debug-flags-left-on", "anomaly_left_on.py", CPU, (60,), args=("--width", "256")),
    Fault(
        "debug-flags-left-on",
        "anomaly_left_on.py",
        CUDA,
        (30,),
        args=("--width", "4096"),
        implies=("sync-per-step", "host-bound"),
    ),
    Fault("gc-jitter", "gc_jitter.py", BOTH, ALL, notes="No id is expected: for jitter."),
)
FAULTS: tuple[Fault, ...] = (*LOADER, *TRANSFERS, *MEMORY, *HOST)

PAIRS: tuple[Fault, ...] = (
    Fault(
        "num-workers-zero+sync-per-step",
        "pair_main_process_and_items.py",
        CUDA,
        ALL,
        plants=("num-workers-zero", "sync-per-step"),
        notes="Half the dose each.",
    ),
    Fault(
        "loader-bound+pin-memory-off",
        "pair_slow_storage_and_pageable.py",
        CUDA,
        (30, 60),
        implies=("h2d-blocking", "h2d-not-overlapped"),
        plants=("loader-bound", "pin-memory-off"),
        notes="The wait for storage hides the copies, which take 20 percent once storage is fast.",
    ),
    Fault(
        "collate-heavy+optimizer-forloop",
        "pair_collate_and_forloop.py",
        CPU,
        (60,),
        implies=("loader-bound",),
        plants=("collate-heavy", "optimizer-forloop"),
        notes="The loader works beside the optimizer and takes as long as the whole step.",
    ),
    Fault(
        "num-workers-zero+debug-flags-left-on",
        "pair_main_process_and_anomaly.py",
        CPU,
        (30, 60),
        plants=("num-workers-zero", "debug-flags-left-on"),
        notes="Loading has half the dose; anomaly detection has what it costs.",
    ),
)
CLEAN: tuple[Fault, ...] = ()
