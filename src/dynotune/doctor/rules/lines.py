"""Lines: usual mistakes that a line of the program, or what it calls, shows by itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dynotune.doctor import policy
from dynotune.doctor.bounds import unless_waited
from dynotune.doctor.declaration import Rule, rule
from dynotune.doctor.hot_lines import asleep, in_words, known, of_loader, of_python, of_thread, steps_thread, told
from dynotune.doctor.machine import number_or_none
from dynotune.doctor.observation_view import Missing, ObservationView
from dynotune.doctor.phases import periodic
from dynotune.schema.diagnosis import Finding
from dynotune.schema.observation import Line, PeriodicKind
from dynotune.schema.trace_summary import Place

_GENERAL = ("host-bound", "loader-bound", "num-workers-zero", "launch-bound", "loader-jitter", "epoch-jitter")


@dataclass(frozen=True)
class Habit:
    """A usual mistake.

    Args:
        calls: of the function that the line calls or that runs, `json/__init__.py(299): loads`.
        text: of the line itself, for what is written in C.
        in_steps: what it is called where only some steps do it.
        what: in words, of the claim: "… takes 30% of a step".
    """

    id: str
    title: str
    what: str
    remedy: str
    wrong_when: str
    calls: str = ""
    text: str = ""
    in_steps: PeriodicKind | None = None

    def is_at(self, line: Line) -> bool:
        if self.calls and re.search(self.calls, f"{line.callee}\n{line.leaf}"):
            return True
        return bool(self.text) and not line.callee and re.search(self.text, line.text) is not None


_HABITS = (
    Habit(
        id="tensor-from-list",
        title="A list of Python numbers becomes a tensor.",
        what="Making a tensor of Python numbers",
        remedy="Keep the data in arrays from the start (numpy.asarray once, torch.from_numpy), or stack tensors: each "
        "number of a list is looked at by Python.",
        wrong_when="the list is made of few numbers, and the step is short.",
        text=r"torch\.(tensor|as_tensor|Tensor|FloatTensor|LongTensor|IntTensor)\(|(np|numpy)\.(array|asarray)\(|\.tolist\(\)",
    ),
    Habit(
        id="text-parsed-per-item",
        title="Text is parsed for each item.",
        what="Parsing text (JSON, CSV, XML, regular expressions)",
        remedy="Parse once, before training, and store what the model needs as arrays.",
        wrong_when="items come from a stream that nobody can parse ahead.",
        calls=r"/(json|csv|xml|yaml|html)/|/(csv|ast|tokenize|configparser)\.py\(|/re/__init__\.py\(|/re\.py\(",
        text=r"json\.loads?\(|csv\.reader|re\.(sub|match|search|findall|split|finditer)\(|\.(findall|finditer|fullmatch)\(",
    ),
    Habit(
        id="table-read-per-item",
        title="A table or an archive is asked for one item at a time.",
        what="Asking a table or an archive (pandas, HDF5, Arrow) for single items",
        remedy="Take the columns out as arrays once (to_numpy()), or read a batch at a time (__getitems__).",
        wrong_when="the table does not fit in memory.",
        calls=r"/(pandas|h5py|pyarrow|polars|zarr|tables|xarray)/",
        text=r"\.i?loc\[",
    ),
    Habit(
        id="file-opened-per-item",
        title="A file is opened for each item.",
        what="Opening and reading files",
        remedy="Open a file once for each worker, or pack the items into few files and map them into memory.",
        wrong_when="each item is a file of its own and reading it is the work.",
        calls=r"/torch/serialization\.py\(\d+\): _?(legacy_)?load|/numpy/lib/(_?npyio|_?format)|"
        r"/(zipfile|tarfile|gzip|pickle|bz2|lzma)(/__init__|/_path)?\.py\(",
        text=r"\bopen\((?!.*[\"'][wax])|(np|numpy)\.load\(|torch\.load\(|pickle\.load",
    ),
    Habit(
        id="saved-per-step",
        title="The program saves often.",
        what="Saving (checkpoints, state_dict)",
        remedy="Save less often, or let a thread write a copy that was made on the host.",
        wrong_when="what is lost since the last checkpoint costs more.",
        in_steps="checkpoint",
        calls=r"/torch/serialization\.py\(\d+\): _?(legacy_)?save|/safetensors/|/torch/distributed/checkpoint/",
        text=r"torch\.save\(|save_checkpoint|save_pretrained|state_dict\(\)|(np|numpy)\.savez?\w*\(",
    ),
    Habit(
        id="copied-per-step",
        title="Objects are copied whole.",
        what="Copying objects (copy.deepcopy)",
        remedy="Copy less often, or copy tensors by Tensor.copy_ into ones that exist.",
        wrong_when="the copy is what the program is for.",
        calls=r"/copy\.py\(",
        text=r"deepcopy\(",
    ),
    Habit(
        id="logged-per-step",
        title="Logging, drawing or writing happens in the loop.",
        what="Logging, drawing or writing",
        remedy="Do it every hundred steps, or in a thread that gets values that were detached.",
        wrong_when="each step is worth its record.",
        calls=r"/(logging|tensorboard|tensorboardX|wandb|mlflow|matplotlib|rich|tqdm|csv)/|/torch/utils/tensorboard/|"
        r"_histograms_impl|/PIL/(ImageDraw\.py|Image\.py\(\d+\): save\b)|/imageio/.*: (im|mim|vol)write\b|"
        r"/torchvision/utils\.py\(",
        text=r"^print\(|imwrite\(|savefig\(|\.write\(|json\.dumps?\(|add_(scalar|histogram|image)|histogram\(|histc\(",
    ),
)


def _judge(habit: Habit) -> Callable[[ObservationView], Iterator[Finding]]:
    def judge(view: ObservationView) -> Iterator[Finding]:
        found = [*of_python(view, habit.is_at), *of_loader(view, habit.is_at)]
        if habit.in_steps is not None:
            rare = [
                (Line(function=one.function, text=one.text, num=0), one.share) for one in periodic(view, habit.in_steps)
            ]
            # Steps that save may do more than that: what was seen of saving itself tells better.
            seen = known(lambda view: of_thread(view, habit.is_at), view)
            found = max(found, seen or rare, key=lambda lines: sum(part for _, part in lines))
        share = min(1.0, sum(part for _, part in found))
        if share < policy.LEAST_SHARE:
            return
        largest, _ = max(found, key=lambda pair: pair[1])
        yield Finding(
            id=habit.id,
            severity=policy.severity(share),
            claim=f"{habit.what} takes {share:.0%} of a step.",
            share=share,
            evidence=told(found),
            where=Place(function=largest.function),
            remedy=habit.remedy,
        )

    judge.__module__ = __name__
    return judge


def _of_habit(habit: Habit) -> Rule:
    return rule(
        habit.id,
        "program",
        title=habit.title,
        sees="where a sampler saw the thread of the steps, or the loader's workers: a line that calls this, or whose "
        "text does.",
        costs="the line's part of the time between operators, or of the wait for the loader; with a device, at most "
        "what it waits for the host.",
        wrong_when=habit.wrong_when,
        explains=_GENERAL,
    )(_judge(habit))


(
    tensor_from_list,
    text_parsed_per_item,
    table_read_per_item,
    file_opened_per_item,
    saved_per_step,
    copied_per_step,
    logged_per_step,
) = map(_of_habit, _HABITS)


@rule(
    "program-waits",
    "program",
    title="The program sleeps, or waits for a thread of its own.",
    sees="the thread of the steps was seen at a line of the program where it took hardly any processor time, and that "
    "is no wait for a loader or for the device: a sleep, a queue, a lock, a socket, an event loop with nothing to do.",
    costs="all of this time, and with a device at most what it waits.",
    wrong_when="there is nothing to do: a service waits for its requests.",
    explains=("host-bound",),
)
def program_waits(view: ObservationView) -> Iterator[Finding]:
    found = asleep(view)
    share = unless_waited(view, min(1.0, sum(part for _, part in found)))
    if share < policy.LEAST_SHARE:
        return
    largest, _ = max(found, key=lambda pair: pair[1])
    producer = _producer(view) if re.search(r"/(queue|threading)\.py\(", f"{largest.callee}{largest.leaf}") else None
    remedy = "Wait less: shorten the sleep or the time limit, or do the next piece of work meanwhile."
    if producer is not None:
        remedy = f"The thread that it waits for is at {producer.function}: make that faster, or use processes."
    yield Finding(
        id="program-waits",
        severity=policy.severity(share),
        claim=f"The program waits for {share:.0%} of a step, mostly at {in_words(largest)}.",
        share=share,
        evidence=told(found) + ([f"meanwhile: {in_words(producer)}"] if producer is not None else []),
        where=Place(function=largest.function),
        remedy=remedy,
    )


def _producer(view: ObservationView) -> Line | None:
    """Return where the busiest other thread of the program was seen most."""
    others = [thread for thread in view.process.threads if not thread.of_steps and thread.lines]
    busiest = max(others, key=lambda thread: thread.cpu_s or 0.0, default=None)
    return None if busiest is None else busiest.lines[0]


@rule(
    "threads-compete",
    "program",
    title="Threads of the program compute in Python beside the steps.",
    sees="another thread of the program took processor time in code of its own, while the thread of the steps ran "
    "Python, too: one of them has the interpreter's lock at a time.",
    costs="at most the other threads' time, and at most that for which the device waits for the host, or for which the "
    "thread of the steps neither ran nor waited for anything else. If no core is left, it may wait for one: then at "
    "most the other threads' part of all processor time, where that is large.",
    wrong_when="the other thread computes in C without the lock.",
    explains=("host-bound", "launch-bound"),
)
def threads_compete(view: ObservationView) -> Iterator[Finding]:
    steps, window_s = steps_thread(view), view.timing.window_s
    others = [one for one in view.process.threads if not one.of_steps and one.lines]
    if steps.cpu_s is None or any(one.cpu_s is None for one in others):
        raise Missing("processor time of threads", "the kernel does not say")
    # A library's own thread, as torch's that pins batches, is seen at no line of the program.
    taken = sum(min((one.cpu_s or 0.0) / window_s, sum(line.num for line in one.lines) / one.num) for one in others)
    # What it took of the processor is its own; the rest, but for its waits, it may have waited for the lock.
    waits = sum(part for _, part in asleep(view)) + view.attribution.shares.input
    idle = max(0.0, 1.0 - steps.cpu_s / window_s - waits)
    share = min(taken, view.attribution.shares.host if view.uses_cuda else idle)
    if not view.uses_cuda:
        # It may have waited for a core if none was left: by as much as they take of all.
        used = _cores_used_up(view)
        part = taken / used if used else 1.0
        share = min(share, part if part >= policy.LARGE_PART else 0.0)
    if share < policy.MEDIUM_SHARE:
        return
    busiest = max(others, key=lambda one: one.cpu_s or 0.0)
    yield Finding(
        id="threads-compete",
        severity=policy.severity(share),
        claim=f"Other threads of the program take {taken:.0%} of a core in Python while a step needs it.",
        share=share,
        evidence=[f"thread {one.name or 'without a name'}: {in_words(one.lines[0])}" for one in others[:3]],
        where=Place(function=busiest.lines[0].function),
        remedy="Do this work in processes (DataLoader workers, multiprocessing), or in code that releases the lock.",
    )


def _cores_used_up(view: ObservationView) -> float | None:
    """Return what all programs took of the cores, if hardly any was left: then a thread may wait for a core."""
    names = ("host.num_cores", "window.tree_cpu_s_per_s", "window.others_cpu_s_per_s")
    cores, own, by_others = (number_or_none(view, name) for name in names)
    used = None if own is None else own + max(0.0, by_others or 0.0)
    return None if cores is None or used is None or used < policy.USED_UP * cores else used


RULES = (
    tensor_from_list,
    text_parsed_per_item,
    table_read_per_item,
    file_opened_per_item,
    saved_per_step,
    copied_per_step,
    logged_per_step,
    program_waits,
    threads_compete,
)
