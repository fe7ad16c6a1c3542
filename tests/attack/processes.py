"""The standing attack on processes: dynotune, what it starts and what they need are taken away at random
moments.

A case is a scene (a dynotune command on a tiny program) and a fault. After each one: no process, no mount, no
lock and no temporary folder is left, what was measured is still there, and `--resume` goes on or says why it
does not.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

import dynotune
from dynotune.launch.process import processes

from .counts import Counts

PYTHON = sys.executable
SOURCE = str(Path(dynotune.__file__).parent.parent)
# Of a command that is undisturbed, of what it leaves behind, and until a scene is under way. None measures
# speed.
LONGEST_S, LONGEST_GONE_S, LONGEST_BEGINNING_S = 180.0, 60.0, 120.0
DOCUMENTS = ("comparison.json", "study.json", "startup.json")
MEASURED = ("pairs", "voided", "blocks", "trials", "pilots")
OTHER_USER = 61003


WHOLE = 500
"""Faults."""


class Skipped(Exception):
    """The case says nothing here."""


class Lost(Exception):
    """What the case is about did not hold."""


# Programs. They write below their folder, which no run may do for real, and say in their run folder that they
# are up.

UP = """
import os, pathlib, signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_DFL)
def up():
    pathlib.Path(os.environ.get("DYNOTUNE_RUN") or ".", f"up-{os.getpid()}").touch()
if "copy" in sys.argv:
    pathlib.Path("copy").write_bytes(bytes(1 << 16))
    os.chmod("train.py", 0o600)
"""
WORKERS = """
for prepare in (lambda: None, os.setsid, lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN)):
    if os.fork() == 0:
        prepare()
        while True:
            signal.pause()
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    os.execve("/usr/bin/tail", ["tail", "-f", "/dev/null", "train.py"], {})
"""
STEPS = """
import dynotune
up()
for number in range(int(sys.argv[1])):
    time.sleep(0.005)
    dynotune.step()
"""
WAITS = "up()\ntime.sleep(float(sys.argv[1]))\nprint('ready', flush=True)\ntime.sleep(0.1)\n"
RANKS = """
import subprocess
if "RANK" not in os.environ:
    rest = {"WORLD_SIZE": "2", "MEET": os.environ["DYNOTUNE_RUN"] + "/meet"}
    ranks = [subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, **rest, "RANK": str(rank),
                              "LOCAL_RANK": str(rank)}) for rank in range(2)]
    codes = [rank.wait() for rank in ranks]
    sys.exit(max(abs(code) for code in codes))
import torch, torch.distributed as dist
dist.init_process_group("gloo", init_method="file://" + os.environ["MEET"], rank=int(os.environ["RANK"]), world_size=2)
net = torch.nn.Linear(8, 8)
up()
with torch.no_grad():
    while True:
        dist.all_reduce(net(torch.ones(1, 8)))
        time.sleep(0.005)
"""  # noqa: E501
LOADS = """
import torch
from torch.utils.data import DataLoader
device = "cuda" if torch.cuda.is_available() else "cpu"
net = torch.nn.Linear(8, 8).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
up()
while True:
    for batch in DataLoader(torch.zeros(1 << 16, 8), batch_size=4, num_workers=int(sys.argv[1])):
        net(batch.to(device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.002)
"""
EATS = """
up()
held = []
try:
    while True:
        held.append(bytearray(b"x") * (8 << 20))
except MemoryError:
    os._exit(9)
"""
# Loaded by dynotune and by its program: a clock that is set, forwards and backwards, while they run.
CLOCK = """
import os, random, time
chance, real = random.Random(os.getpid()), {name: getattr(time, name) for name in ("time", "time_ns")}
offset_s, last_s = 0, real["time"]()
def jumped():
    global offset_s, last_s
    if real["time"]() - last_s > 0.2:
        offset_s, last_s = chance.choice((-86400 * 40, -3600, -1, 1, 3600, 86400 * 40)), real["time"]()
    return offset_s
time.time = lambda: real["time"]() + jumped()
time.time_ns = lambda: real["time_ns"]() + jumped() * 10**9
import datetime as dates
class Jumping(dates.datetime):
    @classmethod
    def now(cls, tz=None):
        return dates.datetime.fromtimestamp(time.time(), tz)
dates.datetime = Jumping
"""
CONTROLS_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""


@dataclass(frozen=True)
class Scene:
    """A dynotune command on a program, in the middle of which the fault comes."""

    name: str
    words: tuple[str, ...]
    program: str
    arguments: tuple[str, ...]
    longest_s: float = 1.5
    resumed_with: tuple[str, ...] = ()


QUICK = ("--pairs", "2", "--warmup", "3", "--steps", "20", "--timeout", "20s")
_COMPARE = ("compare", "env.A=1", *QUICK, "--step-function", "dynotune.step")
_TUNE = ("tune", "--budget", "6s", "--try", "env.A=1", "--timeout", "20s", "--step-function", "dynotune.step")
_DIAGNOSE = (
    "diagnose",
    "--warmup",
    "3",
    "--steps",
    "40",
    "--timeout",
    "20s",
    "--step-function",
    "dynotune.step",
)
_TIMES = ("startup", "time", "--blocks", "2", "--timeout", "20s", "--ready-pattern", "ready")
_STEPS, _FOR_EVER = UP + WORKERS + STEPS, ("1000000", "copy")
COMPARE = Scene("compare", _COMPARE, _STEPS, _FOR_EVER, 2.5, ("compare",))
RUN = Scene("run", ("run",), _STEPS, ("400",))
DIAGNOSE = Scene("diagnose", _DIAGNOSE, _STEPS, _FOR_EVER)
TUNE = Scene("tune", _TUNE, _STEPS, _FOR_EVER, 5.0, ("tune",))
STARTUP = Scene("startup time", _TIMES, UP + WORKERS + WAITS, ("0.2", "copy"), 2.5, ("startup", "time"))
TERMINAL = Scene("run on a terminal", ("run",), _STEPS, ("400",))
RANKED = Scene(
    "compare of two ranks", ("compare", "env.A=1", *QUICK), UP + RANKS, ("copy",), 8.0, ("compare",)
)
_WITHIN = ("compare", "loader.num_workers=2", "--in-process", "only", "--warmup", "5", "--budget", "15s")
_RESUMED = ("compare", "--budget", "15s")
WITHIN = Scene("compare within a run", _WITHIN, UP + LOADS, ("0", "copy"), 6.0, _RESUMED)
_RECORDED = ("diagnose", "--warmup", "5", "--steps", "40")
RECORDED = Scene("diagnose with workers", _RECORDED, UP + LOADS, ("2", "copy"), 5.0)
# The short draw is of the first six; programs with torch come at the end, and once in a while.
_TINY = (RUN, COMPARE, STARTUP, DIAGNOSE, TERMINAL, COMPARE, TUNE)
SCENES = (*_TINY, RUN, RANKED, *_TINY, COMPARE, WITHIN, *_TINY, RUN, RECORDED)
if Path("/dev/nvidiactl").exists():
    SCENES = (RUN, WITHIN, RECORDED, *SCENES)


class World:
    """A machine's user with a project, in which one case happens."""

    def __init__(self, folder: Path, scene: Scene) -> None:
        self.folder, self.scene, self.mark = folder, scene, uuid.uuid4().hex
        self.project, self.runs, self.temporary = (folder / name for name in ("project", "runs", "tmp"))
        self.state = folder / "state"
        self.group = _group_of_all(self.mark)
        for path in (self.project, self.temporary, folder / "site"):
            path.mkdir()
        (self.project / "train.py").write_text(scene.program)
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "TMPDIR": str(self.temporary),
            "XDG_STATE_HOME": str(self.state),
            "PYTHONPATH": f"{folder / 'site'}:{SOURCE}",
            "OMP_NUM_THREADS": "1",
            "DYNOTUNE_ATTACK": self.mark,
            **{name: os.environ[name] for name in ("CUDA_VISIBLE_DEVICES",) if name in os.environ},
        }
        self.terminal: int | None = None

    def start(self, before: Sequence[str] = (), command: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        """The scene's command; what it says goes to a file, or to a terminal that is read into none."""
        command = command or [PYTHON, "train.py", *self.scene.arguments]
        words = [PYTHON, "-m", "dynotune", *self.scene.words, *self._options(), "--", *command]
        if "terminal" not in self.scene.name:
            return self._start([*before, *words], stdin=subprocess.DEVNULL)
        self.terminal, theirs = pty.openpty()
        words = [*before, PYTHON, "-c", CONTROLS_TERMINAL, *words]
        try:
            return self._start(words, stdin=theirs, stdout=theirs, stderr=theirs)
        finally:
            os.close(theirs)

    def types(self, *words: str) -> tuple[int, str]:
        """Another command to its end."""
        (self.folder / "said").unlink(missing_ok=True)
        process = self._start([PYTHON, "-m", "dynotune", *words], stdin=subprocess.DEVNULL)
        return self.ended(process), self.said()

    def ended(self, process: subprocess.Popen[bytes]) -> int:
        """Wait for its end, reading the terminal, and letting go on what stopped with the program."""
        deadline_s = time.monotonic() + LONGEST_S
        while process.poll() is None:
            self._read_terminal()
            if time.monotonic() > deadline_s:
                tree = [(each.pid, each.state, _command(each.pid)) for each in processes.tree(process.pid)]
                raise Lost(f"it hangs: {tree}")
            time.sleep(0.02)
        return process.returncode

    def said(self) -> str:
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / "said").read_text(errors="replace")
        return ""

    def pids(self, *, besides: int = 0) -> list[int]:
        """The processes that came of this case, dead ones left out.

        The kernel knows them by their cgroup, where there is one: a process may clear its environment, but
        leaves its group only if it names another one.
        """
        entry = f"DYNOTUNE_ATTACK={self.mark}".encode()
        living = [each.pid for each in processes.everyone() if each.state not in "ZX"]
        found = {pid for pid in living if processes.environment_holds(pid, entry)}
        if self.group is not None and self.group.exists():
            found |= {int(pid) for pid in (self.group / "cgroup.procs").read_text().split()}
        return sorted(found - {besides})

    def left_alone(self, fault: Fault) -> bytes:
        """What may go on after the fault, by a word of its command: a bare command leaves it, too."""
        if not self.scene.name.startswith("run"):
            return b""
        killed = {"dynotune", "supervisor"} & set(fault.killed)
        # SECURITY.md says so of a process without environment in a session of its own.
        ends_all = {frozenset({"dynotune"}): b"", frozenset({"supervisor"}): b"/dev/null"}
        return ends_all.get(frozenset(killed), b"train.py")

    def is_up(self) -> bool:
        return any(name.startswith("up-") for _, _, names in os.walk(self.runs) for name in names)

    def document(self) -> tuple[Path | None, dict[str, Any]]:
        """Of the comparison, study or startup: its file and content."""
        for path in (each for name in DOCUMENTS for each in self.runs.glob(f"*/{name}")):
            return path, json.loads(path.read_bytes())
        return None, {}

    def _options(self) -> list[str]:
        return ["--run-dir", str(self.runs)]

    def _start(self, words: Sequence[str], **streams: Any) -> subprocess.Popen[bytes]:
        if self.group is not None:
            enter = f'echo $$ > {self.group}/cgroup.procs; exec "$@"'
            words = ["sh", "-c", enter, "sh", *words]
        with (self.folder / "said").open("ab") as said:
            streams = {"stdout": said, "stderr": said, **streams}
            return subprocess.Popen(words, cwd=self.project, env=self.env, start_new_session=True, **streams)

    def _read_terminal(self) -> None:
        if self.terminal is not None:
            os.set_blocking(self.terminal, False)
            with contextlib.suppress(OSError):
                os.read(self.terminal, 1 << 16)

    def close_terminal(self) -> None:
        if self.terminal is not None:
            os.close(self.terminal)
            self.terminal = None

    def end(self) -> None:
        self.close_terminal()
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.group is not None:
            _remove_group(self.group)


# Faults: what happens, once the scene is under way or from its start.


@dataclass(frozen=True)
class Fault:
    """`strike(world, dynotune's process, random)`, or what stands before the scene's words or the
    program's."""

    name: str
    strike: Callable[[World, int, Random], None] | None = None
    prepare: Callable[[World, Random], tuple[Sequence[str], Sequence[str]]] | None = None
    fits: Callable[[Scene], bool] = lambda scene: True
    killed: tuple[str, ...] = ()


def _family(dynotune_pid: int) -> dict[str, list[int]]:
    """Who is who, by their place in the tree."""
    supervisors = [
        each.pid
        for each in processes.descendants(dynotune_pid)
        if each.parent == dynotune_pid and b"process.supervisor" in _command(each.pid)
    ]
    children = [each.pid for pid in supervisors for each in processes.descendants(pid) if each.parent == pid]
    programs = [pid for pid in children if not _command(pid).startswith(b"tail")]
    workers = [each.pid for pid in programs for each in processes.descendants(pid)]
    return {"dynotune": [dynotune_pid], "supervisor": supervisors, "program": programs, "worker": workers}


def _command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _signals(name: str, *whom: str, numbers: Sequence[int]) -> Fault:
    """Send each of `numbers` to one of each kind of `whom`, all of them stopped first where there are
    more."""

    def strike(world: World, pid: int, random: Random) -> None:
        family = _until(lambda: (found := _family(pid)) and all(found[kind] for kind in whom) and found, pid)
        chosen = [random.choice(family[kind]) for kind in whom]
        for number in numbers:
            for each in chosen:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each, number)
            if number == signal.SIGSTOP:
                time.sleep(random.random() / 2)

    return Fault(name, strike, killed=whom if signal.SIGKILL in numbers else ())


def _to_the_group(number: int) -> Fault:
    def strike(world: World, pid: int, random: Random) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, number)

    killed = ("dynotune", "supervisor", "program") if number == signal.SIGKILL else ()
    return Fault(f"{signal.Signals(number).name} to the group", strike, killed=killed)


def _twice_interrupted(world: World, pid: int, random: Random) -> None:
    for _ in range(random.choice((2, 3))):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGINT)
        time.sleep(random.random() / 5)


def _hang(world: World, pid: int, random: Random) -> None:
    """All that the command is stops, and after a while the user has enough."""
    family = _until(lambda: (found := _family(pid))["program"] and found, pid)
    for each in family["program"] + family["worker"]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGSTOP)
    time.sleep(random.random())
    for number in (signal.SIGCONT, signal.SIGINT) if world.scene.name.startswith("run") else (signal.SIGINT,):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, number)


def _close_terminal(world: World, pid: int, random: Random) -> None:
    world.close_terminal()


def _limited(
    letter: str, low: int, high: int
) -> Callable[[World, Random], tuple[Sequence[str], Sequence[str]]]:
    return lambda world, random: (
        ["sh", "-c", f'ulimit -{letter} {random.randint(low, high)}; exec "$@"', "sh"],
        [],
    )


def _few_processes(world: World, random: Random) -> tuple[Sequence[str], Sequence[str]]:
    if os.geteuid() != 0 or not all(map(shutil.which, ("prlimit", "setpriv"))):
        raise Skipped("needs root, prlimit and setpriv: the limit does not hold for root")
    for path in (world.folder, *world.folder.rglob("*")):
        os.chown(path, OTHER_USER, OTHER_USER)
    become = ["setpriv", f"--reuid={OTHER_USER}", f"--regid={OTHER_USER}", "--clear-groups"]
    become += ["--inh-caps=+dac_override", "--ambient-caps=+dac_override"]
    # Not `ulimit -u`, which not every sh knows.
    return ["prlimit", f"--nproc={random.randint(1, 12)}", *become], []


def _program_without_memory(world: World, random: Random) -> tuple[Sequence[str], Sequence[str]]:
    (world.project / "eats.py").write_text(UP + EATS)
    return [], ["sh", "-c", f"ulimit -v {random.randint(60_000, 600_000)}; exec {PYTHON} eats.py"]


def _killed_for_memory(world: World, random: Random) -> tuple[Sequence[str], Sequence[str]]:
    (world.project / "eats.py").write_text(UP + EATS)
    group = _memory_group(world.mark, random.randint(20, 200) << 20)
    return [], ["sh", "-c", f"echo $$ > {group}/cgroup.procs; exec {PYTHON} eats.py"]


def _memory_group(name: str, most_bytes: int) -> Path:
    for root, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        group = Path(root, f"dynotune-attack-{name}")
        with contextlib.suppress(OSError):
            group.mkdir()
            try:
                (group / limit).write_text(str(most_bytes))
                return group
            except OSError:
                group.rmdir()
    raise Skipped("no cgroup with a limit of memory can be made")


def _clock(world: World, random: Random) -> tuple[Sequence[str], Sequence[str]]:
    (world.folder / "site" / "sitecustomize.py").write_text(CLOCK)
    return [], []


def _time_namespace(random: Random) -> list[str]:
    by_s = random.choice((-1, 1)) * random.choice((100, 10_000, 10_000_000))
    uptime_s = time.clock_gettime(time.CLOCK_MONOTONIC)
    words = ["unshare", "--time", *(f"--{name}={max(by_s, int(60 - uptime_s))}" for name in _SHIFTED)]
    if shutil.which("unshare") is None or subprocess.run([*words, "true"], capture_output=True).returncode:
        raise Skipped("no time namespace can be made")
    return words


_SHIFTED = ("monotonic", "boottime")


def _all_in_a_time_namespace(world: World, random: Random) -> tuple[Sequence[str], Sequence[str]]:
    return _time_namespace(random), []


def _program_in_a_time_namespace(world: World, random: Random) -> tuple[Sequence[str], Sequence[str]]:
    """Its times cannot be compared with dynotune's: that is said, and `run` does without a record."""
    return [], [*_time_namespace(random), PYTHON, "train.py", *world.scene.arguments]


_TERM, _KILL, _INT, _HUP, _STOP, _CONT = (
    getattr(signal, f"SIG{name}") for name in ("TERM", "KILL", "INT", "HUP", "STOP", "CONT")
)
_has_terminal = lambda scene: "terminal" in scene.name  # noqa: E731
_takes_long_limits = lambda scene: not any(word in scene.name for word in ("ranks", "within", "workers"))  # noqa: E731
_SIGNALS = [
    _signals(f"{number.name} to {whom}", whom, numbers=[number])
    for number in (_TERM, _KILL, _INT, _HUP)
    for whom in ("dynotune", "supervisor", "program", "worker")
]
_STOPPED = [
    _signals(f"{whom} stopped, then killed", whom, numbers=[_STOP, _KILL])
    for whom in ("dynotune", "supervisor", "program", "worker")
]
FAULTS: tuple[Fault, ...] = (
    _signals("dynotune and supervisor killed", "dynotune", "supervisor", numbers=[_STOP, _KILL]),
    *_SIGNALS,
    *_STOPPED,
    _signals("dynotune and supervisor killed at once", "dynotune", "supervisor", numbers=[_KILL]),
    _signals("dynotune, supervisor and program killed", "dynotune", "supervisor", "program", numbers=[_KILL]),
    _signals("dynotune stopped, then continued", "dynotune", numbers=[_STOP, _CONT]),
    _signals("supervisor stopped, then continued", "supervisor", numbers=[_STOP, _CONT]),
    _signals("program stopped, then continued", "program", numbers=[_STOP, _CONT]),
    _to_the_group(_INT),
    _to_the_group(_HUP),
    _to_the_group(_TERM),
    _to_the_group(_KILL),
    Fault("interrupted again and again", _twice_interrupted),
    Fault("the command hangs", _hang),
    Fault("terminal closed", _close_terminal, fits=_has_terminal),
    Fault("few descriptors", prepare=_limited("n", 3, 40), fits=_takes_long_limits),
    Fault("little address space", prepare=_limited("v", 20_000, 900_000), fits=_takes_long_limits),
    Fault("small files", prepare=_limited("f", 0, 300), fits=_takes_long_limits),
    Fault("few processes", prepare=_few_processes, fits=_takes_long_limits),
    Fault("a command without memory", prepare=_program_without_memory),
    Fault("a command killed for its memory", prepare=_killed_for_memory),
    Fault("clock jumps", prepare=_clock, fits=_takes_long_limits),
    Fault("dynotune in a time namespace", prepare=_all_in_a_time_namespace, fits=_takes_long_limits),
    Fault("the program in a time namespace", prepare=_program_in_a_time_namespace, fits=_takes_long_limits),
)


def attack(number: int, seed: int, *, first: int = 0, workers: int = 2) -> Counts:
    """Make `number` faults, `workers` at once.

    Args:
        seed, first: the case of number `i` depends on the seed and `i` alone: `first=i` begins with that one.
    """
    counts = Counts()
    with ThreadPoolExecutor(workers) as pool:
        for at, (name, outcome, detail) in enumerate(
            pool.map(lambda at: _case(at, seed), range(first, first + number)), first
        ):
            if outcome == "skipped":
                counts.skipped[name] = detail
                continue
            counts.tried[name] += 1
            if outcome == "lost":
                counts.failures.append(f"{name}, --seed {seed} --first {at}: {detail}")
            else:
                counts.held[name] += 1
    return counts


def drawn(at: int, seed: int) -> tuple[Scene, Fault, Random]:
    """The case of this number."""
    random = Random(f"{seed} {at}")
    scene = SCENES[at % len(SCENES)]
    return scene, random.choice([fault for fault in FAULTS if fault.fits(scene)]), random


def _case(at: int, seed: int) -> tuple[str, str, str]:
    """Its name, what came of it, and why."""
    scene, fault, random = drawn(at, seed)
    name = f"{scene.name}: {fault.name}"
    with tempfile.TemporaryDirectory(prefix="attack-", ignore_cleanup_errors=True) as folder:
        world = World(Path(folder).resolve(), scene)
        # Other users' part of it: whoever knows the name may pass.
        world.folder.chmod(0o711)
        try:
            strike(world, fault, random)
            return name, "held", ""
        except Skipped as skipped:
            return name, "skipped", str(skipped)
        except Lost as lost:
            return name, "lost", f"{lost}; it said: {world.said()[-600:]!r}"
        finally:
            world.end()
            _remove_groups(world.mark)


def _group_of_all(mark: str) -> Path | None:
    """A cgroup of version 2 for all processes of a case, below the one of this process; None without."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        ours = next(line.removeprefix("0::/") for line in lines if line.startswith("0::/"))
        root = next(path for path in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
                    if Path(path, "cgroup.procs").exists())  # fmt: skip
        group = Path(root, ours, f"dynotune-attack-{mark}-all")
        group.mkdir()
        return group
    return None


def _remove_groups(mark: str) -> None:
    for root in ("/sys/fs/cgroup/memory", "/sys/fs/cgroup"):
        _remove_group(Path(root, f"dynotune-attack-{mark}"))


def _remove_group(group: Path) -> None:
    for _ in range(50 if group.exists() else 0):
        with contextlib.suppress(OSError):
            group.rmdir()
            break
        time.sleep(0.1)


def strike(world: World, fault: Fault, random: Random) -> None:
    """Run the scene, have the fault strike, and check all. Raises Skipped, Lost."""
    before, command = fault.prepare(world, random) if fault.prepare else ((), ())
    project = _contents(world.project)
    began_s, process = time.monotonic(), world.start(before, command)
    measured: dict[str, Any] = {}
    if fault.strike is not None:
        # Some come before the command is up, most while it is measured.
        if random.random() < 0.8:
            _until(world.is_up, process.pid, world)
        time.sleep(random.random() * world.scene.longest_s)
        measured = world.document()[1]
        if process.poll() is not None:
            raise Skipped("over before the fault")
        fault.strike(world, process.pid, random)
    world.ended(process)
    _check_said(world, process.returncode, at_the_fault=True)
    # Where there can be no view, that is said, and the program writes where it would without dynotune.
    works_there = "Runs work in your folder itself" in " ".join(world.said().split())
    if process.returncode != -signal.SIGKILL or len(fault.killed) < 2:
        _check_gone(world, but=world.left_alone(fault))
    _check_kept(measured, world.document()[1])
    _check_attempts(world.document()[1], time.monotonic() - began_s)
    if world.folder.stat().st_uid == os.geteuid():
        (world.folder / "site" / "sitecustomize.py").unlink(missing_ok=True)
        _go_on(world, world.document()[0])
    _check_gone(world, but=world.left_alone(fault))
    _check_left(world)
    works_there = works_there or world.scene.name.startswith("run")
    if not works_there and _contents(world.project) != project:
        raise Lost("the project's files were changed")


def _go_on(world: World, document: Path | None) -> None:
    """The user's next call: resume it, or measure something else, which cleans up."""
    kept = world.document()[1]
    if document is None or not world.scene.resumed_with:
        words = ("compare", "env.A=1", "--run-dir", str(world.runs / "next"), "--", "false")
    else:
        words = (*world.scene.resumed_with, "--resume", document.parent.name, "--run-dir", str(world.runs))
    code, said = world.types(*words)
    _check_said(world, code)
    if code not in (0, 1, 4) and "next: " not in said:
        raise Lost(f"the next command ended with {code} and says no way out")
    _check_kept(kept, world.document()[1])


def _check_said(world: World, code: int, *, at_the_fault: bool = False) -> None:
    said = world.said()
    if (
        code == 70
        or "dynotune made a mistake" in said
        or re.search(r'^\s+File ".*/dynotune/', said, re.MULTILINE)
    ):
        raise Lost(
            f"a mistake of dynotune's own {'at' if at_the_fault else 'after'} the fault, exit code {code}"
        )


def _check_gone(world: World, *, but: bytes) -> None:
    deadline_s = time.monotonic() + LONGEST_GONE_S
    while pids := [pid for pid in world.pids() if not but or but not in _command(pid)]:
        if time.monotonic() > deadline_s:
            raise Lost(f"processes are left: {[(pid, _command(pid)) for pid in pids]}")
        time.sleep(0.02)


def _check_kept(before: dict[str, Any], after: dict[str, Any]) -> None:
    for kind in MEASURED:
        known, kept = (document.get(kind) or [] for document in (before, after))
        # A comparison's `blocks` is what they said, and no list of them.
        if isinstance(known, list) and (not isinstance(kept, list) or kept[: len(known)] != known):
            raise Lost(f"{kind} that were measured are lost")


def _check_attempts(document: dict[str, Any], most_s: float) -> None:
    """Whatever the clock of the day says, an attempt takes no longer than it took, and no negative time."""
    for attempt in document.get("attempts") or []:
        began, ended = (datetime.fromisoformat(attempt[name]) for name in ("began", "ended"))
        if not -1 <= (ended - began).total_seconds() <= most_s + 2:
            raise Lost(f"an attempt of at most {most_s:.0f} s is written as {began} to {ended}")


def mounts_of(folder: Path) -> list[str]:
    """The mounts that name a folder, in every mount namespace that a process is in.

    A run's private view appears in its own namespace alone.
    """
    seen, found = set(), []
    for each in processes.everyone():
        with contextlib.suppress(OSError):
            namespace = str(Path(f"/proc/{each.pid}/ns/mnt").readlink())
            if namespace not in seen:
                lines = Path(f"/proc/{each.pid}/mountinfo").read_text().splitlines()
                found += [line for line in lines if str(folder) in line]
                seen.add(namespace)
    return found


def _check_left(world: World) -> None:
    mounts = mounts_of(world.folder)
    notes = list(world.state.glob("dynotune/leases/*"))
    # What else is there, the program made: its loader's workers, when they are killed, leave folders of their
    # own.
    ours = ("dt-", "dynotune")
    copies = [path for path in world.temporary.iterdir() if path.name.startswith(ours)]
    copies += world.runs.glob("**/dt-*")
    held = [path.name for path in world.state.glob("dynotune/*.lock") if not _can_lock(path)]
    if mounts or notes or copies or held:
        raise Lost(f"left: mounts {mounts}, notes {notes}, temporary files {copies}, locks {held}")


def _can_lock(path: Path) -> bool:
    with path.open("r+b") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True


def _contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {str(path): (path.stat().st_mode, path.read_bytes()) for path in _files(folder)}


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts)


def _until(ask: Callable[[], Any], pid: int, world: World | None = None) -> Any:
    """What `ask` answers once that is true.

    Raises:
        Skipped: the process `pid` is over before.
    """
    deadline_s = time.monotonic() + LONGEST_BEGINNING_S
    while not (answer := ask()):
        if world is not None:
            world._read_terminal()
        process = processes.read(pid)
        if process is None or process.state in "ZX" or time.monotonic() > deadline_s:
            raise Skipped("over before the fault")
        time.sleep(0.02)
    return answer
