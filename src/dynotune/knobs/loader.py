"""How torch's DataLoader fetches batches. Each applies to every loader the program builds."""

from __future__ import annotations

from dynotune.knobs.conditions import ON_GPU, torch_from
from dynotune.schema.knob import Constructor, Knob

_LOADERS = ("torch.utils.data.DataLoader",)
_DOCS = "https://docs.pytorch.org/docs/stable/data.html"

KNOBS = (
    Knob(
        id="loader.num_workers",
        site=Constructor(_LOADERS, "num_workers"),
        type="int",
        minimum=0,
        default="0: the training process loads its own batches",
        when="construct",
        effect="sampling",
        doc="Processes that load batches beside the training process. The samples and their order stay the same; "
        "random augmentation draws other numbers, since each worker has its own generator.",
        hurts="More workers than free cores slow each other down, and torch looks at the affinity only, not at a "
        "container's quota. Each costs memory and a start; on tiny data that is more than it saves. An IterableDataset "
        "that does not split itself by worker is refused: every sample would come once a worker.",
        source=_DOCS + "#multi-process-data-loading",
    ),
    Knob(
        id="loader.pin_memory",
        site=Constructor(_LOADERS, "pin_memory"),
        type="bool",
        default="false",
        when="construct",
        effect="exact",
        **ON_GPU,
        doc="Puts each batch in page-locked memory, from which the GPU copies several times faster. It pays most "
        "together with transfer.non_blocking.",
        hurts="Page-locked memory is taken from the machine for good, and the one thread that fills it can become the "
        "bottleneck. A batch of an own class without a pin_memory() method stays unpinned, silently.",
        source=_DOCS + "#memory-pinning",
    ),
    Knob(
        id="loader.persistent_workers",
        site=Constructor(_LOADERS, "persistent_workers"),
        type="bool",
        default="false: workers are started anew for each epoch",
        when="construct",
        effect="sampling",
        doc="Keeps the workers from one epoch to the next. It pays where epochs are short. Needs workers.",
        hurts="Workers hold the dataset as it was when they started: what the program changes in it between epochs "
        "does not reach them. Their memory stays taken during evaluation.",
        not_switched="it acts where an epoch begins",
        source=_DOCS + "#torch.utils.data.DataLoader",
    ),
    Knob(
        id="loader.prefetch_factor",
        site=Constructor(_LOADERS, "prefetch_factor"),
        type="int",
        minimum=1,
        default="2 where there are workers",
        when="construct",
        effect="exact",
        doc="Batches that each worker loads ahead. It evens out loading times that vary; it does not help where "
        "loading is too slow on average. Needs workers.",
        hurts="Memory, shared memory (/dev/shm) above all: workers x prefetch_factor batches wait there.",
        source=_DOCS + "#torch.utils.data.DataLoader",
    ),
    Knob(
        id="loader.in_order",
        site=Constructor(_LOADERS, "in_order"),
        type="bool",
        default="true",
        when="construct",
        effect="semantics",
        needs=("torch.version",),
        applies=torch_from(2, 6),
        unless="the DataLoader of torch before 2.6 cannot deliver out of order",
        doc="With false, a batch is handed out as soon as it is ready, so that one slow sample does not hold up those "
        "behind it.",
        hurts="The order of batches differs from run to run, and where slow samples are of one kind they come late: "
        "the distribution that the model sees is skewed.",
        source=_DOCS + "#torch.utils.data.DataLoader",
    ),
    Knob(
        id="loader.multiprocessing_context",
        site=Constructor(_LOADERS, "multiprocessing_context"),
        type="str",
        values=("fork", "forkserver", "spawn"),
        default="Python's own: fork on Linux, forkserver from Python 3.14 on",
        when="construct",
        effect="semantics",
        doc="How workers are started. fork is fastest; the others begin in a fresh interpreter. Needs workers.",
        hurts="fork copies whatever threads and locks were in use, and a worker that touches CUDA after it fails. "
        "forkserver and spawn import the program again in each worker, and must be able to pickle the dataset.",
        source="https://docs.python.org/3/library/multiprocessing.html#contexts-and-start-methods",
    ),
)
