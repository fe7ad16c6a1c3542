"""How torch's DataLoader fetches batches, and what decodes pictures. Each applies to every loader of the program."""

from __future__ import annotations

from dynotune.knobs.conditions import ON_GPU, torch_from
from dynotune.schema.knob import Call, Constructor, Knob, Library

_LOADERS = ("torch.utils.data.DataLoader",)
_STARTED = "workers that have started keep what they began with"
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
    Knob(
        id="loader.worker_threads",
        site=Library("worker_threads"),
        type="int",
        minimum=1,
        default="1 of torch; of OpenCV as many as there are cores",
        when="construct",
        effect="numerics",
        doc="Threads of torch and of OpenCV in each worker. 1 keeps the workers' threads of OpenCV from taking each "
        "other's cores; more helps few workers whose samples are large.",
        hurts="Workers times threads beyond the cores slow each other down. Sums in several threads round differently. "
        "Workers that are not forked are left alone.",
        not_switched=_STARTED,
        source=_DOCS + "#multi-process-data-loading",
    ),
    Knob(
        id="loader.sharing_strategy",
        site=Call(set="torch.multiprocessing.set_sharing_strategy", get="torch.multiprocessing.get_sharing_strategy"),
        type="str",
        values=("file_descriptor", "file_system"),
        default="file_descriptor on Linux",
        when="any",
        effect="exact",
        doc="How tensors in shared memory reach the process that trains. file_system needs no open file for each "
        "tensor, where a limit of open files stops the program.",
        hurts="With file_system, shared memory of a program that is killed can stay until its manager process ends.",
        not_switched=_STARTED,
        source="https://docs.pytorch.org/docs/stable/multiprocessing.html#sharing-strategies",
    ),
    Knob(
        id="decode.backend",
        site=Library("decode"),
        type="str",
        values=("opencv", "torchvision", "simplejpeg"),
        packages={
            "opencv": ("opencv-python", "opencv-contrib-python"),
            "torchvision": ("torchvision",),
            "simplejpeg": ("simplejpeg",),
        },
        default="Pillow",
        when="any",
        effect="numerics",
        doc="Decodes JPEG files with this library where the program asks Pillow, and gives it "
        "Pillow's own images. The read-back says by how much pixels of its own files differ.",
        hurts="Which decoder is fastest depends on the processor and on the number of workers. Other formats, CMYK, 12 "
        "bits, files cut short and files that draft() scales stay with Pillow.",
        not_switched=_STARTED,
        source="https://arxiv.org/abs/2605.08731",
    ),
    Knob(
        id="loader.batches",
        site=Library("batches"),
        type="str",
        values=("by-length",),
        default="as the loader's sampler gives them",
        when="construct",
        effect="sampling",
        doc="Puts sequences of like length into one batch, so that less is padded. Each sample comes as often as "
        "before, in batches of the same size. So it is for Transformers' Trainer.",
        hurts="Batches are less mixed. A loader that does not shuffle is left alone, and one whose samples take long "
        "to read, since their lengths are read once, in a process beside it.",
        not_switched="it acts where an epoch begins",
        source="https://huggingface.co/docs/transformers/main_classes/trainer",
    ),
)
