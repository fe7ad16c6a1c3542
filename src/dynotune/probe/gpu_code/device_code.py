"""Find GPU code in files of folders, interpreters and commands, and judge whether GPUs run or compile the
code.

docs/reference/startup.md defines the terms. The scan reads only headers, several files concurrently. The
scan, like cuobjdump, does not see code in a library's own format (cuFFT has one).
"""

import os
import re
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from dynotune.probe.gpu_code import elf_code, fatbin, gpu_archs
from dynotune.probe.gpu_code.code_places import Places
from dynotune.probe.sources.nvml import answer, cuda_driver, identity, session, visible_in
from dynotune.schema import untrusted
from dynotune.schema.device_code import (
    Architecture,
    Code,
    Container,
    DeviceCode,
    Form,
    Gpu,
    Library,
    Problem,
    Summary,
    Verdict,
)
from dynotune.schema.facts import Unknown, or_unknown

DEADLINE_S = 60.0
NUM_THREADS, NUM_AHEAD = 8, 64
"""Numbers of threads (a cold disk serves several reads at once) and of files in progress."""

MOST_PTX_HEAD_BYTES = 1 << 16
PTX_TARGET = re.compile(rb"^\s*\.target\s+sm_(\d{2,3})([af]?)\b", re.MULTILINE)
PTX_VERSION = re.compile(rb"^\s*\.version\s+(\d+)\.(\d+)", re.MULTILINE)

MOST_PROBLEMS_OF_A_FILE = 5
FORMS: tuple[Form, ...] = ("machine", "ptx", "lto", "other")


class FileCode(msgspec.Struct, frozen=True):
    """Code in one file. `containers`: code that can be loaded. `link_input`: code that only the linker
    reads."""

    containers: list[Container]
    link_input: list[Container]
    problems: list[str]

    def tell(self, what: str) -> None:
        """Note a problem; for a damaged file, only the first problems are noted."""
        if len(self.problems) <= MOST_PROBLEMS_OF_A_FILE:
            self.problems.append(
                what if len(self.problems) < MOST_PROBLEMS_OF_A_FILE else "and more of the kind"
            )


def in_file(path: Path, *, asked: bool = True) -> FileCode:
    """Read the GPU code of one file: ELF (a library, a program, a cubin), `.fatbin` or `.ptx`. Never raises.

    `asked`: the user named this file, so a file of any other kind is a problem.
    """
    found = FileCode([], [], [])
    try:
        with untrusted.opened(path) as file:
            descriptor = file.fileno()
            head = os.pread(descriptor, 4, 0)
            if head == elf_code.MAGIC:
                _in_elf(elf_code.Elf(file), descriptor, found)
            elif head == fatbin.MAGIC_BYTES:
                size = os.fstat(descriptor).st_size
                found.containers.extend(fatbin.containers(_reader(descriptor), 0, size, found.tell))
            elif path.suffix == ".ptx":
                _in_ptx(os.pread(descriptor, MOST_PTX_HEAD_BYTES, 0), os.fstat(descriptor).st_size, found)
            elif asked or path.suffix in (".cubin", ".fatbin"):
                found.problems.append("it is not an ELF file, fat binary or PTX")
    except OSError as error:
        found.problems.append(f"it cannot be read: {error.strerror}")
    except elf_code.Unreadable as error:
        found.problems.append(str(error))
    return found


def _in_elf(elf: elf_code.Elf, descriptor: int, found: FileCode) -> None:
    if elf.is_cubin:
        found.containers.append((elf.cubin(),))
        return
    for name, begin, end in elf.sections():
        where = found.link_input if name == elf_code.LINK_INPUT else found.containers
        where.extend(fatbin.containers(_reader(descriptor), begin, end, found.tell))


def _reader(descriptor: int) -> fatbin.Read:
    return lambda offset, size: os.pread(descriptor, size, offset)


def _in_ptx(head: bytes, size: int, found: FileCode) -> None:
    target, version = PTX_TARGET.search(head), PTX_VERSION.search(head)
    if target is None:
        found.problems.append("it has no .target, so it is not PTX")
        return
    code = gpu_archs.named(f"compute_{target[1].decode()}{target[2].decode()}")
    if code is not None:
        language = None if version is None else (int(version[1]), int(version[2]))
        code = msgspec.structs.replace(code, stored_bytes=size, code_bytes=size, ptx_version=language, kind=1)
        found.containers.append((code,))


def scan(
    places: Places,
    gpus: Sequence[Gpu] | Unknown,
    *,
    deadline_s: float = DEADLINE_S,
    tell: Callable[[int], object] | None = None,
) -> DeviceCode:
    """Return the GPU code in all files of `places`, and whether each GPU runs or compiles the code. Never
    raises.

    Args:
        gpus: GPUs to judge the code for; may be empty.
        deadline_s: time limit (s), after which the answer covers the files read so far.
        tell: function that is called now and then with the number of files read.
    """
    began_s = time.monotonic()
    judged = [] if isinstance(gpus, Unknown) else list(gpus)
    libraries: list[Library] = []
    problems: list[Problem] = [*places.problems]
    late = threading.Event()
    num_files = 0

    def read(file: Path) -> FileCode | None:
        return None if late.is_set() else in_file(file, asked=file in places.asked)

    with ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="dynotune-scan") as pool:
        for file, found in _in_step(pool, read, places.files(problems, late)):
            if found is None or time.monotonic() - began_s > deadline_s:
                late.set()
                continue
            num_files += 1
            problems += [Problem(str(file), what) for what in found.problems]
            if found.containers or found.link_input:
                libraries.append(_library(file, found, judged))
            if tell is not None:
                tell(num_files)
    libraries.sort(key=lambda library: library.path)
    if late.is_set():
        problems.append(Problem(", ".join(places.roots), f"after {deadline_s:g} s not every file was read"))
    return DeviceCode(
        places=places.roots,
        gpus=gpus if isinstance(gpus, Unknown) else judged,
        num_files=num_files,
        duration_s=time.monotonic() - began_s,
        complete=not late.is_set(),
        libraries=libraries,
        summaries=[
            _summary(gpu, [library.verdicts[at] for library in libraries]) for at, gpu in enumerate(judged)
        ],
        problems=problems,
    )


@or_unknown()
def gpus_here(env: Mapping[str, str], *, nvml: Any = None) -> list[Gpu] | Unknown:
    """Return the GPUs that a command under `env` sees, each model once; Unknown without a GPU or if NVML
    fails."""
    with session(nvml) as library:
        visible = visible_in(library, env)
        # If all GPUs are of one model, it does not matter which one is seen; a MIG slice is of the same
        # model.
        indices = range(library.nvmlDeviceGetCount()) if isinstance(visible, Unknown) else visible
        driver = answer(library, lambda: cuda_driver(library))
        cuda = None if isinstance(driver, Unknown) else driver
        found = {}
        for index in indices:
            facts = identity(library, index)
            capability, name = facts["gpu.compute_capability"], facts["gpu.name"]
            if isinstance(capability, str):
                named = name if isinstance(name, str) else ""
                found[capability] = Gpu(compute_capability=capability, name=named, cuda_driver=cuda)
        return [*found.values()] or Unknown("there is no GPU that a program could use")


def _in_step(
    pool: ThreadPoolExecutor, read: Callable[[Path], FileCode | None], files: Iterator[Path]
) -> Iterator[tuple[Path, FileCode | None]]:
    """Yield each file with its result, in order; the walk through the folders stays only a little ahead."""
    under_way: deque[tuple[Path, Future[FileCode | None]]] = deque()
    for file in files:
        under_way.append((file, pool.submit(read, file)))
        if len(under_way) >= NUM_AHEAD:
            first, answer = under_way.popleft()
            yield first, answer.result()
    for first, answer in under_way:
        yield first, answer.result()


def _library(file: Path, found: FileCode, gpus: Sequence[Gpu]) -> Library:
    return Library(
        path=str(file),
        num_containers=len(found.containers),
        architectures=architectures(chain.from_iterable(found.containers)),
        link_input=architectures(chain.from_iterable(found.link_input)),
        verdicts=[gpu_archs.verdict(found.containers, gpu) for gpu in gpus],
    )


def architectures(codes: Iterable[Code]) -> list[Architecture]:
    """Merge GPU codes of the same architecture, and return machine code first."""
    together: dict[tuple[int, int, str, str], list[Code]] = {}
    for code in codes:
        together.setdefault((FORMS.index(code.form), code.sm, code.suffix, code.name), []).append(code)
    return [
        Architecture(
            name=name,
            form=FORMS[form],
            num=len(alike),
            stored_bytes=sum(code.stored_bytes for code in alike),
            code_bytes=sum(code.code_bytes for code in alike),
        )
        for (form, _, _, name), alike in sorted(together.items())
    ]


def _summary(gpu: Gpu, verdicts: Sequence[Verdict]) -> Summary:
    num = Counter(f"num_{each.verdict}" for each in verdicts)
    counted = {name: num[name] for name in Summary.__struct_fields__ if name.startswith("num_")}
    return Summary(gpu=gpu, ptx_bytes=sum(each.ptx_bytes for each in verdicts), **counted)
