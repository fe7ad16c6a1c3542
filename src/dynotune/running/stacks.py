"""Read the Python stacks of a running program from outside, by py-spy, which neither stops nor changes the
program.

py-spy is a program of its own, which is used if it is installed. It needs the right to trace the process: the
same user with `kernel.yama.ptrace_scope` 0, or root, or CAP_SYS_PTRACE. It is asked not to stop the program
(`--nonblocking`), so some of its looks fail, and the others may be torn; only frames that many looks share
count.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from dynotune.running import process_files
from dynotune.running.targets import Rank
from dynotune.schema import untrusted
from dynotune.schema.facts import Unknown
from dynotune.schema.running import StackLine, Stacks
from dynotune.text import words

RATE_HZ = 40
LENGTH_S = 2
LIMIT_S = 6.0
"""Seconds after which py-spy is ended, whatever it does."""
NUM_WORKERS = 2
"""Workers whose stacks are read; they all do the same."""
MOST_BYTES = 32 << 20
FEWEST_LOOKS = 20
NUM_LINES = 5
LEAST_SHARE = 0.03
LONGEST_PLACE = 160

PTRACE_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
NO_PROGRAM = Unknown("py-spy, which reads stacks, is not installed (pip install 'dynotune[stacks]')")

_MAIN = re.compile(r"thread \((\d+)\)(?:: [^;]*)?;(.*) (\d+)$")
_FRAME = re.compile(r"(?P<function>.*) \((?P<file>.*):(?P<line>\d+)\)$")
_IN_LOADER = re.compile(r"torch/utils/data/(dataloader|_utils/(fetch|worker|collate|pin_memory))\.py$")
_BACKWARD = re.compile(r"torch/(_tensor|autograd/(__init__|graph))\.py$")
_OPTIMIZER = re.compile(r"torch/optim/[^/]+\.py$")
_PACKAGES = re.compile(
    r"(^|/)(site-packages|dist-packages|lib/python[\d.]+t?|dynotune/agent)/|^<frozen|^<string>$|^$"
)


class Frame(NamedTuple):
    """A function with its file and the line that runs."""

    function: str
    file: str
    line: int

    @property
    def is_users(self) -> bool:
        return not _PACKAGES.search(self.file)

    @property
    def place(self) -> str:
        return f"{self.file.rpartition('/')[2]}({self.line}): {self.function}"


def read(rank: Rank) -> Stacks | Unknown:
    """Sample the stacks of a rank's main thread, and of some of its workers; Unknown without py-spy or the
    right."""
    program = _program()
    if program is None:
        return NO_PROGRAM
    pids = [rank.process.pid, *(one.pid for one in rank.workers[:NUM_WORKERS])]
    with tempfile.TemporaryDirectory(prefix="dynotune-stacks-") as folder:
        children = {pid: _start(program, pid, Path(folder) / f"{pid}.txt") for pid in pids}
        errors = {pid: _end(child) for pid, child in children.items()}
        found = {pid: _looks(Path(folder) / f"{pid}.txt", pid) for pid in pids}
    main, *others = pids
    if sum(found[main].values()) < FEWEST_LOOKS:
        return errors[main] or Unknown("py-spy saw the main thread too rarely")
    return summary(found[main], [found[pid] for pid in others])


def summary(main: Counter[tuple[Frame, ...]], workers: Sequence[Counter[tuple[Frame, ...]]]) -> Stacks:
    """Summarise stacks, outermost frame first, with the number of looks at each."""
    num = sum(main.values())
    of_workers = sum(workers, Counter[tuple[Frame, ...]]())

    def part(pattern: re.Pattern[str]) -> float:
        return (
            sum(n for frames, n in main.items() if any(pattern.search(frame.file) for frame in frames)) / num
        )

    return Stacks(
        num=num,
        loader_share=part(_IN_LOADER),
        backward_share=part(_BACKWARD),
        optimizer_share=part(_OPTIMIZER),
        lines=[*_lines(main, "main"), *_lines(of_workers, "worker")],
    )


def missing_right() -> str:
    """Return what stands in the way of reading another process's memory, in words; "" if nothing is known
    to."""
    if os.geteuid() == 0 or not PTRACE_SCOPE.exists():
        return ""
    scope = (process_files.content(PTRACE_SCOPE) or b"").decode(errors="replace").strip()
    return (
        ""
        if scope == "0"
        else f"kernel.yama.ptrace_scope is {scope} (sudo sysctl kernel.yama.ptrace_scope=0)"
    )


def _program() -> str | None:
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.is_file() else shutil.which("py-spy")


def _start(program: str, pid: int, file: Path) -> subprocess.Popen[bytes]:
    asked = {"--pid": pid, "--rate": RATE_HZ, "--duration": LENGTH_S, "--format": "raw", "--output": file}
    options = [str(word) for pair in asked.items() for word in pair]
    return subprocess.Popen(
        [program, "record", *options, "--nonblocking", "--idle", "--threads", "--full-filenames"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def _end(child: subprocess.Popen[bytes]) -> Unknown | None:
    """Wait for py-spy; return why it failed."""
    with child:
        try:
            _, stderr = child.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGKILL)
            return Unknown(
                f"py-spy had no stacks after {LIMIT_S:.0f} s: the program may be stuck in the kernel"
            )
    if child.returncode == 0:
        return None
    lines = stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"]
    if "ermission" in lines[0]:
        return Unknown(
            "py-spy may not read the process: it needs root, or the right to trace (CAP_SYS_PTRACE)"
        )
    return Unknown(f"py-spy failed: {words.plain(lines[0], longest=200)}")


def _looks(file: Path, pid: int) -> Counter[tuple[Frame, ...]]:
    """Read stacks of the main thread with the number of looks at each; empty if there is no file."""
    try:
        text = untrusted.read(file, MOST_BYTES).decode(errors="replace")
    except OSError:
        return Counter()
    found: Counter[tuple[Frame, ...]] = Counter()
    for line in text.splitlines():
        match = _MAIN.match(line)
        if match is not None and int(match[1]) == pid:
            frames = (_FRAME.match(part) for part in match[2].split(";"))
            known = tuple(Frame(each["function"], each["file"], int(each["line"])) for each in frames if each)
            found[known] += int(match[3])
    return found


def _lines(stacks: Counter[tuple[Frame, ...]], thread: str) -> list[StackLine]:
    """Return the user's innermost lines, the most frequent first."""
    num = sum(stacks.values())
    seen: Counter[tuple[str, bool]] = Counter()
    for frames, count in stacks.items():
        inner = next((at for at in range(len(frames) - 1, -1, -1) if frames[at].is_users), None)
        if inner is not None:
            in_loader = any(_IN_LOADER.search(frame.file) for frame in frames)
            seen[words.plain(frames[inner].place, longest=LONGEST_PLACE), in_loader] += count
    return [
        StackLine(
            place=place, thread="main" if thread == "main" else "worker", in_loader=inside, share=count / num
        )
        for (place, inside), count in seen.most_common(NUM_LINES)
        if count >= LEAST_SHARE * num
    ]
