"""Lines: usual mistakes that a line of the program, or what it calls, shows by itself."""

from __future__ import annotations

import re

from dynotune.doctor import hot_lines, policy
from dynotune.doctor.bounds import unless_waited
from dynotune.doctor.declaration import Judgement, Judgements, Rule, rule
from dynotune.doctor.machine import cores_in_use
from dynotune.doctor.observation_view import Missing, ObservationView
from dynotune.doctor.phases import periodic
from dynotune.schema.observation import Line, PeriodicKind
from dynotune.schema.trace_summary import Place

_GENERAL = ("host-bound", "loader-bound", "num-workers-zero", "launch-bound", "loader-jitter", "epoch-jitter")


def _habit(
    id: str,
    *,
    title: str,
    what: str,
    remedy: str,
    wrong_when: str,
    calls: str = "",
    text: str = "",
    at: str = "",
    in_steps: PeriodicKind | None = None,
    least: float = policy.LEAST_SHARE,
) -> Rule:
    """Make the rule on a usual mistake.

    Args:
        calls: of the function that the line calls or that runs, `json/__init__.py(299): loads`; where samples are made
            also of the part, `decode: text`.
        text: of the line itself, for what is written in C.
        at: of the line itself, in any case.
        in_steps: what it is called where only some steps do it.
        least: the share of a step that is worth a word.
        what: in words, of the claim: "… takes 30% of a step".
    """

    def is_at(line: Line) -> bool:
        if at and not re.search(at, line.text):
            return False
        if calls and re.search(calls, f"{line.callee}\n{line.leaf}"):
            return True
        return bool(text) and not line.callee and re.search(text, line.text) is not None

    @rule(
        id=id,
        title=title,
        sees="where a sampler saw the thread of the steps, or the loader's workers: a line that calls this, or whose "
        "text does.",
        costs="the line's part of the time between operators, or of the wait for the loader; with a device, at most "
        "what it waits for the host.",
        wrong_when=wrong_when,
        explains=_GENERAL,
    )
    def judge(view: ObservationView) -> Judgements:
        found = [*hot_lines.of_python(view, is_at), *hot_lines.of_loader(view, is_at)]
        if in_steps is not None:
            rare = [(Line(function=one.function, text=one.text, num=0), one.share) for one in periodic(view, in_steps)]
            # Steps that save may do more than that: what was seen of saving itself tells better.
            seen = hot_lines.known(lambda view: hot_lines.of_thread(view, is_at), view)
            found = max(found, seen or rare, key=lambda lines: sum(part for _, part in lines))
        share = min(1.0, sum(part for _, part in found))
        if share < least:
            return
        yield Judgement(
            claim=f"{what} takes {share:.0%} of a step.",
            share=share,
            evidence=hot_lines.told(found),
            where=hot_lines.place(found),
            remedy=remedy,
        )

    return judge


_OPENS = r"(h5py|h5)\.File\(|ZipFile\(|tarfile\.open\(|TarFile\(|lmdb\.open\(|\.connect\(|ParquetFile\(|read_parquet\("
_WHOLE = (
    r"self\.\w+(\[[\"']\w+[\"']\])?\.(copy|clone|astype|tolist|numpy)\(|(deepcopy|np\.\w+|numpy\.\w+)\(self\.\w+\s*[,)]|"
    r"torch\.(tensor|as_tensor)\(self\.\w+\s*[,)]|\[(:|\(\)|\.\.\.)\]"
)


HABITS = (
    _habit(
        "tensor-from-list",
        title="A list of Python numbers becomes a tensor.",
        what="Making a tensor of Python numbers",
        remedy="Keep the data in arrays from the start (numpy.asarray once, torch.from_numpy), or stack tensors: each "
        "number of a list is looked at by Python.",
        wrong_when="the list is made of few numbers, and the step is short.",
        text=r"torch\.(tensor|as_tensor|Tensor|FloatTensor|LongTensor|IntTensor)\(|(np|numpy)\.(array|asarray)\(|\.tolist\(\)",
    ),
    _habit(
        "text-parsed-per-item",
        title="Text is parsed for each item.",
        what="Parsing text (JSON, CSV, XML, regular expressions)",
        remedy="Parse once, before training, and store what the model needs as arrays.",
        wrong_when="items come from a stream that nobody can parse ahead.",
        calls=r"^decode: (text|decompressing)|/(json|csv|xml|yaml|html)/|/(csv|ast|tokenize|configparser)\.py\(|"
        r"/re/__init__\.py\(|/re\.py\(",
        text=r"json\.loads?\(|csv\.reader|re\.(sub|match|search|findall|split|finditer)\(|\.(findall|finditer|fullmatch)\(",
    ),
    _habit(
        "table-read-per-item",
        title="A table or an archive is asked for one item at a time.",
        what="Asking a table or an archive (pandas, HDF5, Arrow) for single items",
        remedy="Take the columns out as arrays once (to_numpy()), or read a batch at a time (__getitems__).",
        wrong_when="the table does not fit in memory.",
        at=rf"^(?!.*({_OPENS}))",
        calls=r"^read: (table|HDF5|Arrow|parquet|database|LMDB)|/(pandas|h5py|pyarrow|polars|zarr|tables|xarray)/",
        text=r"\.i?loc\[",
    ),
    _habit(
        "file-opened-per-item",
        title="A file is opened for each item.",
        what="Opening and reading files",
        remedy="Open a file once for each worker, or pack the items into few files and map them into memory.",
        wrong_when="each item is a file of its own and reading it is the work.",
        at=rf"^(?!.*({_OPENS}))",
        calls=r"^read: (file|zip|tar|numpy file|tensor file|pickle|network)|"
        r"/torch/serialization\.py\(\d+\): _?(legacy_)?load|/numpy/lib/(_?npyio|_?format)|"
        r"/(zipfile|tarfile|gzip|pickle|bz2|lzma)(/__init__|/_path)?\.py\(",
        text=r"\bopen\((?!.*[\"'][wax])|(np|numpy)\.load\(|torch\.load\(|pickle\.load",
    ),
    _habit(
        "archive-opened-per-item",
        title="An archive or a table is opened anew for each item.",
        what="Opening an archive or a table (HDF5, zip, tar, LMDB, Parquet, SQLite)",
        remedy="Keep it open: open it at the first item of each worker (if self.archive is None: self.archive = ...), "
        "not for each item and not before workers are forked.",
        wrong_when="each item is in an archive of its own.",
        text=_OPENS,
        calls=r"^(read|decode|wait): ",
        at=_OPENS,
    ),
    _habit(
        "tokenized-per-item",
        title="Text is tokenized for each item.",
        what="Tokenizing",
        remedy="Tokenize once, before training, and store the ids (datasets.map with batched=True keeps them on disk).",
        wrong_when="the text is drawn or changed at random for each item.",
        calls=r"^decode: tokenizing",
    ),
    _habit(
        "resized-per-item",
        title="Pictures are resized for each item.",
        what="Resizing",
        remedy="Store the pictures at the size that the model takes, larger if it crops; or resize batches on the GPU.",
        wrong_when="the size is drawn at random for each item and the pictures are hardly larger than that.",
        calls=r"(?i)^transform: .*(resize|interpolate)",
    ),
    _habit(
        "transform-heavy",
        title="A transform takes much of the time of a sample.",
        what="Transforming samples",
        remedy="Do it for the whole batch on the GPU, or with a faster library; what is not random, do once and store.",
        wrong_when="the GPU is the bottleneck once samples are ready.",
        calls=r"(?i)^transform: (?!.*(resiz|interpolate))",
        least=policy.MEDIUM_SHARE,
    ),
    _habit(
        "array-copied-per-item",
        title="A whole array is copied for each item.",
        what="Copying a whole array, or reading it whole, for one item",
        remedy="Take the item first and copy only that: self.array[index].copy(), not self.array.copy()[index].",
        wrong_when="the array is what the item is.",
        calls=r"^read: |^collate: ",
        text=_WHOLE,
        at=_WHOLE,
    ),
    _habit(
        "locked-per-item",
        title="Samples wait for a lock.",
        what="Waiting for a lock while samples are made",
        remedy="Let each worker have its own file, connection or generator; make samples in processes, not in threads.",
        wrong_when="the lock guards a device that can do one thing at a time.",
        calls=r"^wait: lock",
        least=policy.MEDIUM_SHARE,
    ),
    _habit(
        "handover-heavy",
        title="Handing samples to the training process takes much of their time.",
        what="Handing batches over (pickling, shared memory)",
        remedy="Return few tensors or arrays a batch: lists, strings and objects are pickled one by one.",
        wrong_when="batches are so large that copying them is the work: then send smaller types (uint8).",
        calls=r"^move: ",
        least=policy.MEDIUM_SHARE,
    ),
    _habit(
        "saved-per-step",
        title="The program saves often.",
        what="Saving (checkpoints, state_dict)",
        remedy="Save less often, or let a thread write a copy that was made on the host.",
        wrong_when="what is lost since the last checkpoint costs more.",
        in_steps="checkpoint",
        calls=r"/torch/serialization\.py\(\d+\): _?(legacy_)?save|/safetensors/|/torch/distributed/checkpoint/",
        text=r"torch\.save\(|save_checkpoint|save_pretrained|state_dict\(\)|(np|numpy)\.savez?\w*\(",
    ),
    _habit(
        "copied-per-step",
        title="Objects are copied whole.",
        what="Copying objects (copy.deepcopy)",
        remedy="Copy less often, or copy tensors by Tensor.copy_ into ones that exist.",
        wrong_when="the copy is what the program is for.",
        calls=r"/copy\.py\(",
        text=r"deepcopy\(",
    ),
    _habit(
        "logged-per-step",
        title="Logging, drawing or writing happens in the loop.",
        what="Logging, drawing or writing",
        remedy="Do it every hundred steps, or in a thread that gets values that were detached.",
        wrong_when="each step is worth its record.",
        calls=r"/(logging|tensorboard|tensorboardX|wandb|mlflow|matplotlib|rich|tqdm|csv)/|/torch/utils/tensorboard/|"
        r"_histograms_impl|/PIL/(ImageDraw\.py|Image\.py\(\d+\): save\b)|/imageio/.*: (im|mim|vol)write\b|"
        r"/torchvision/utils\.py\(\d+\): (make_grid|save_image|draw_|flow_to_image)",
        text=r"^print\(|imwrite\(|savefig\(|\.write\(|json\.dumps?\(|add_(scalar|histogram|image)|histogram\(|histc\(",
    ),
)


@rule(
    title="The program sleeps, or waits for a thread of its own.",
    sees="the thread of the steps was seen at a line where it took hardly any processor time, and that is no wait for "
    "a loader or the device: a sleep, a queue, a lock, a socket, an idle event loop.",
    costs="all of this time, and with a device at most what it waits.",
    wrong_when="there is nothing to do: a service waits for its requests.",
    explains=("host-bound",),
)
def program_waits(view: ObservationView) -> Judgements:
    found = hot_lines.asleep(view)
    share = unless_waited(view, min(1.0, sum(part for _, part in found)))
    if share < policy.LEAST_SHARE:
        return
    largest, _ = max(found, key=lambda pair: pair[1])
    producer = _producer(view) if hot_lines.HANDS_OVER.search(f"{largest.callee}{largest.leaf}") else None
    remedy = "Wait less: shorten the sleep or the time limit, or do the next piece of work meanwhile."
    if producer is not None:
        remedy = f"The thread that it waits for is at {producer.function}: make that faster, or use processes."
    yield Judgement(
        claim=f"The program waits for {share:.0%} of a step, mostly at {hot_lines.in_words(largest)}.",
        share=share,
        evidence=hot_lines.told(found)
        + ([f"meanwhile: {hot_lines.in_words(producer)}"] if producer is not None else []),
        where=Place(function=largest.function),
        remedy=remedy,
    )


# What these do in C leaves the interpreter to others.
_UNLOCKED = re.compile(
    r"\b(cv2|zlib|bz2|lzma|hashlib|av|turbojpeg|simplejpeg)\.\w+|(np|numpy)\.(fromfile|load)\(|\.read\w*\(|"
    r"/(torch|PIL|cv2)/"
)


def _producer(view: ObservationView) -> Line | None:
    """Return where the busiest other thread of the program was seen most."""
    others = [thread for thread in view.process.threads if not thread.of_steps and thread.lines]
    busiest = max(others, key=lambda thread: thread.cpu_s or 0.0, default=None)
    return None if busiest is None else busiest.lines[0]


@rule(
    title="Threads of the program compute in Python beside the steps.",
    sees="another thread of the program took processor time in code of its own, while the thread of the steps ran "
    "Python, too: one of them has the interpreter's lock at a time.",
    costs="at most the other threads' time, and at most that for which the device waits for the host, or the thread of "
    "the steps neither ran nor waited. If no core is left: at most their part of all processor time, if it is large.",
    wrong_when="the other thread computes in C without the lock; torch, OpenCV, Pillow and reading files are known to.",
    explains=("host-bound", "launch-bound"),
)
def threads_compete(view: ObservationView) -> Judgements:
    steps, window_s = hot_lines.steps_thread(view), view.timing.window_s
    others = [one for one in view.process.threads if not one.of_steps and one.lines]
    if steps.cpu_s is None or any(one.cpu_s is None for one in others):
        raise Missing("processor time of threads", "the kernel does not say")
    # A library's own thread, as torch's that pins batches, is seen at no line of the program.
    taken = sum(
        min(
            (one.cpu_s or 0.0) / window_s,
            sum(line.num for line in one.lines if not _UNLOCKED.search(line.leaf or line.callee or line.text))
            / one.num,
        )
        for one in others
    )
    # What it took of the processor is its own; the rest, but for its waits, it may have waited for the lock.
    waits = sum(part for _, part in hot_lines.asleep(view)) + view.attribution.shares.input
    idle = max(0.0, 1.0 - steps.cpu_s / window_s - waits)
    share = min(taken, view.attribution.shares.host if view.uses_cuda else idle)
    if not view.uses_cuda:
        # It may have waited for a core if none was left: by as much as they take of all.
        used, cores = cores_in_use(view), view.number_or_none("host.num_cores")
        part = taken / used if used and cores is not None and used >= policy.USED_UP * cores else 1.0
        share = min(share, part if part >= policy.LARGE_PART else 0.0)
    if share < policy.MEDIUM_SHARE:
        return
    busiest = max(others, key=lambda one: one.cpu_s or 0.0)
    yield Judgement(
        claim=f"Other threads of the program take {taken:.0%} of a core in Python while a step needs it.",
        share=share,
        evidence=[f"thread {one.name or 'without a name'}: {hot_lines.in_words(one.lines[0])}" for one in others[:3]],
        where=Place(function=busiest.lines[0].function),
        remedy="Do this work in processes (DataLoader workers, multiprocessing), or in code that releases the lock.",
    )
