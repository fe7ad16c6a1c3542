"""What the host does beside the GPU: threads and memory."""

from __future__ import annotations

from dynotune.schema.knob import Call, Knob, Preload

MALLOC_LIBRARIES: dict[str, tuple[str, ...]] = {
    "jemalloc": ("libjemalloc.so.2", "libjemalloc.so.1", "libjemalloc.so"),
    "tcmalloc": ("libtcmalloc.so.4", "libtcmalloc_minimal.so.4", "libtcmalloc.so", "libtcmalloc_minimal.so"),
}

_THREADS = "https://docs.pytorch.org/docs/stable/notes/cpu_threading_torchscript_inference.html"

KNOBS = (
    Knob(
        id="host.num_threads",
        site=Call(set="torch.set_num_threads", get="torch.get_num_threads"),
        type="int",
        minimum=1,
        default="the cores that the process may use, or OMP_NUM_THREADS; torchrun sets 1 for several ranks",
        when="any",
        # Sums split over another number of threads round differently.
        effect="numerics",
        doc="Threads within one CPU operation of torch.",
        hurts="Ranks, workers and threads share the cores: more threads than cores slow all of them down. One thread "
        "is right for many small operations, and too few for large ones.",
        source=_THREADS,
    ),
    Knob(
        id="host.interop_threads",
        site=Call(set="torch.set_num_interop_threads", get="torch.get_num_interop_threads"),
        type="int",
        minimum=1,
        default="the cores of the machine",
        when="before_cuda",
        effect="exact",
        doc="Threads that run independent CPU operations side by side (torch.jit.fork, some distributed work).",
        hurts="Most programs start no such work, and see no difference. Torch lets it be set once in a process.",
        source=_THREADS,
    ),
    Knob(
        id="host.malloc",
        site=Preload(MALLOC_LIBRARIES),
        type="str",
        values=("system", "jemalloc", "tcmalloc"),
        default="system",
        when="process",
        effect="exact",
        needs=("platform",),
        applies=lambda facts: str(facts["platform"]).lower().startswith("linux"),
        unless="preloading a library works on Linux only",
        doc="The allocator behind malloc in the command and its children, preloaded where the library is installed.",
        hurts="Keeps freed memory longer. Helps where CPU code allocates much, such as decoding; else nothing changes.",
        source="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
    ),
)
