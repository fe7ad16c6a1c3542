"""Load the agent into a Python that runs, from version 3.14 on, through `sys.remote_exec`.

The target's own interpreter asks for this: both have to be of one version. It runs in the target's file
system, where the agent's code and the script of a few lines lie that the target's main thread executes at its
next instruction. The script starts a thread, which looks at a deadline and at dynotune's lock before it does
anything. So what was asked for and never executed, because the main thread is stuck in a call, does nothing
if it is executed later.

Source: PEP 768, and Python/remote_debugging.c of CPython 3.14.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dynotune.launch.process import environment
from dynotune.running import process_files
from dynotune.running.process_files import PROC, ProcessFiles
from dynotune.running.shared_folder import SharedFolder, sees_our_files
from dynotune.schema.errors import CannotRunHere
from dynotune.schema.facts import Unknown
from dynotune.text import words

OLDEST = (3, 14)
LOCK, FAILED = "held.lock", "failed.txt"
ASK_S = 60.0
"""Seconds that the target's interpreter may take to start, compile the agent and ask."""
BEGIN_S = 20.0
"""Seconds in which the target's main thread has to come to its next instruction."""
DISABLED = "PYTHON_DISABLE_REMOTE_DEBUG"
NOTHING = "/dev/null"
"""Path of a script that does nothing: asked for in place of one that nobody waits for any more."""

_MOST_BYTES = 1 << 16
"""Bytes that are read of what the asking interpreter prints."""
_VARIABLES = ("PATH", "LANG", "LC_ALL")
"""Variables of dynotune's that the asking interpreter gets; others may hold secrets."""
_INTERPRETER = re.compile(r"python(3(\.\d+)?t?)?")
_FREE_THREADED = re.compile(r"python\d+\.\d+t(?:[/.]|$)")
_VERSION = re.compile(r"python(\d+)\.(\d+)t?(?:[/.]|$)")

_ASK = """\
import compileall, fcntl, json, os, shutil, sys
folder, asked = sys.argv[1], json.loads(sys.argv[2])
os.nice(10)  # the program shall not wait for a core
def say(**found):
    print(json.dumps({"version": list(sys.version_info[:3]), **found}))
    sys.exit()
if not hasattr(sys, "remote_exec"):
    say(error="version")
if folder:
    # Code without sources: the target looks for no other file, and writes none.
    os.umask(0o077)
    agent = os.path.join(folder, "dynotune", "agent")
    is_source = os.path.exists(os.path.join(agent, "__init__.py"))
    if is_source and not compileall.compile_dir(agent, quiet=2, legacy=True):
        say(error="compile")
    for place, _, names in os.walk(agent):
        for name in names:
            if name.endswith(".py"):
                os.unlink(os.path.join(place, name))
    with open(os.path.join(folder, "held.lock")) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
            say(error="killed")
        except BlockingIOError:
            pass  # dynotune holds it, so it was not killed meanwhile
failed = {}
for pid, script in asked:
    try:
        sys.remote_exec(pid, script)
    except Exception as error:
        failed[pid] = {"error": type(error).__name__, "message": str(error)}
say(failed=failed)
"""

_BEGIN = """\
def begin():
    import fcntl, os, sys, time
    from importlib.machinery import ModuleSpec, SourcelessFileLoader
    folder, script, pid, until_s, name = {folder!r}, {script!r}, {pid}, {until_s!r}, "_dynotune_agent"
    why = ""
    try:
        os.unlink(script)
        if time.monotonic() > until_s:
            return
        with open(os.path.join(folder, {lock!r})) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                pass  # dynotune holds it
        if "torch" not in sys.modules:
            why = "no torch"
        if name in sys.modules:
            why = "agent"
        if "free-threading" in sys.version:
            why = "free-threaded"
        if why:
            with open(os.path.join(folder, {failed!r}), "w") as file:
                file.write(why)
            return
        path = os.path.join(folder, "dynotune", "agent")
        loader = SourcelessFileLoader(name, os.path.join(path, "__init__.pyc"))
        spec = ModuleSpec(name, loader, origin=loader.path, is_package=True)
        spec.submodule_search_locations = [path]
        spec.has_location = True
        agent = type(sys)(name)
        agent.__spec__, agent.__loader__, agent.__file__ = spec, loader, loader.path
        agent.__path__, agent.__package__ = [path], name
        sys.modules[name] = agent
        loader.exec_module(agent)
        agent.stay_while_held(folder, os.path.join(folder, {lock!r}), pid)
    except Exception:
        for each in [] if why else list(sys.modules):
            if each == name or each.startswith(name + "."):
                sys.modules.pop(each, None)
import _thread
_thread.start_new_thread(begin, ())
"""


class Place(NamedTuple):
    """How a process is asked in its own file system.

    Args:
        root: its root by dynotune's path; "" if both see the same files.
        mounts: its mounts and root by the kernel's names; processes of one pair see the same files.
        enter: words before a command that is to run in its file system.
        pid: its process id as such a command sees it.
    """

    root: str
    mounts: tuple[str, str]
    enter: tuple[str, ...]
    pid: int


def version_of(process: ProcessFiles) -> tuple[int, int] | None:
    """Return the version of a process's Python, from the names of its files; None if they do not tell it."""
    names = [process.executable, *sorted(path for path in process.libraries if "python" in path)]
    for name in names:
        if match := _VERSION.search(name):
            return int(match[1]), int(match[2])
    return None


def unfit(process: ProcessFiles) -> str:
    """Return why the agent cannot be loaded into a process, as far as its files tell; "" if nothing is known
    against it."""
    version = version_of(process)
    if not process.has_torch:
        return "the program has not loaded torch"
    if version is not None and version < OLDEST:
        return f"it needs Python 3.14 or later, and the program runs Python {version[0]}.{version[1]}"
    if process.variable(DISABLED) or _has_option(process.arguments):
        return "remote debugging is switched off in the program (PYTHON_DISABLE_REMOTE_DEBUG)"
    if process.variable("DYNOTUNE_RUN"):
        return "another dynotune already watches the program"
    if process.executable.endswith(" (deleted)"):
        return "its interpreter was replaced or removed after its start"
    if not _INTERPRETER.fullmatch(process.executable.rpartition("/")[2]):
        return "its executable is no Python interpreter, but a program that contains one"
    if any(map(_FREE_THREADED.search, (process.executable, *process.libraries))):
        return "its Python is free-threaded, on which the agent was not tried"
    return ""


def _fewer_rights(process: ProcessFiles, proc: Path) -> str:
    """Return why the process's interpreter must not be run by dynotune, with dynotune's rights; "" if it has
    the same.

    Whoever is confined may have chosen what the interpreter and its files do.
    """
    theirs, ours = (_rights(proc / str(pid)) for pid in (process.pid, "self"))
    if theirs is None or ours is None:
        return "its rights cannot be read"
    same = theirs.owners == ours.owners and not ours.capabilities & ~theirs.capabilities
    if same and all(one <= other for one, other in zip(theirs.confined, ours.confined, strict=True)):
        return ""
    pid = _own_pid(process.pid, proc)
    return (
        "it has fewer rights than dynotune, as in most containers; run dynotune inside that container, or "
        f"with the same rights, with --pid {pid}"
    )


class _Rights(NamedTuple):
    owners: tuple[str, str]  # user ids, and the namespace in which they count
    capabilities: int  # effective ones, and the bounding set above them
    confined: tuple[int, int, int]  # each the larger, the less is allowed


def _rights(folder: Path) -> _Rights | None:
    lines = (process_files.content(folder / "status") or b"").decode(errors="replace").splitlines()
    fields = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    try:
        return _Rights(
            (fields["Uid"], process_files.link(folder / "ns" / "user")),
            int(fields["CapEff"], 16) | int(fields["CapBnd"], 16) << 64,
            (int(fields["NoNewPrivs"]), int(fields["Seccomp"]), int(fields.get("Seccomp_filters", 0))),
        )
    except (KeyError, ValueError):
        return None


def place_of(process: ProcessFiles, proc: Path = PROC) -> Place | Unknown:
    """Return how a process is asked in its file system; Unknown if it cannot be, or must not be."""
    folder, ours = proc / str(process.pid), proc / "self"
    root, mine = (process_files.link(one / "root") for one in (folder, ours))
    mounts, our_mounts = (process_files.link(one / "ns" / "mnt") for one in (folder, ours))
    if not root:
        return Unknown("its file system cannot be read; it needs root, or the right to trace")
    if reason := _fewer_rights(process, proc):
        return Unknown(reason)
    if sees_our_files(process, proc):
        return Place("", (mine, our_mounts), (), process.pid)
    enter = shutil.which("nsenter")
    if enter is None:
        return Unknown(
            "it runs in a container, and nsenter (util-linux), which could enter the container, is not "
            "installed"
        )
    words_ = [enter, "--target", str(process.pid), "--root"]
    words_ += [] if mounts == our_mounts else ["--mount"]
    same_pids = process_files.link(folder / "ns" / "pid") == process_files.link(ours / "ns" / "pid")
    words_ += [] if same_pids else ["--pid"]
    return Place(root, (root, mounts), (*words_, "--"), _own_pid(process.pid, proc))


def copy_agent(folder: Path) -> None:
    """Copy the agent's sources into a folder that the target sees, where its own interpreter compiles them.

    Readers of traces know the agent's frames by the names of its folders.
    """
    left = shutil.ignore_patterns("__pycache__", "fake", "bootstrap")
    shutil.copytree(environment.AGENT, folder / "dynotune" / "agent", ignore=left)


def load(
    processes: Sequence[ProcessFiles],
    places: Sequence[Place],
    folder: Path,
    shared: SharedFolder,
    num_needed: int,
) -> None:
    """Ask each process to execute a script that loads the agent.

    Raises CannotRunHere: one of the first `num_needed` cannot be asked. What the others were asked for does
    nothing once dynotune lets go of its lock.
    """
    answer = _ask(processes[0], places[0], shared.of_target(folder), [])
    if "error" in answer:
        raise _refused(answer, processes[0])
    until_s = time.monotonic() + BEGIN_S  # only now: to compile the agent may have taken long
    asked = []
    for process, place in zip(processes, places, strict=True):
        script = folder / f"begin-{process.pid}.py"
        values = {"folder": shared.of_target(folder), "script": shared.of_target(script)}
        text = _BEGIN.format(**values, pid=process.pid, until_s=until_s, lock=LOCK, failed=FAILED)
        script.touch(mode=0o600)
        script.write_text(text)
        if process_files.lives(process):
            asked.append((place.pid, values["script"]))
    answer = _ask(processes[0], places[0], "", asked)
    if "error" in answer:
        raise _refused(answer, processes[0])
    for process, place in zip(processes[:num_needed], places, strict=False):
        if (failed := answer["failed"].get(str(place.pid))) is not None:
            raise _refused(failed, process)


def take_back(process: ProcessFiles, place: Place) -> bool:
    """Have a process execute nothing in place of a script that it has not executed yet; tell whether it
    will."""
    answer = _ask(process, place, "", [(place.pid, NOTHING)])
    return "error" not in answer and not answer["failed"]


def _ask(process: ProcessFiles, place: Place, folder: str, asked: list[tuple[int, str]]) -> dict[str, Any]:
    """Run an interpreter of the process's version that compiles the agent in `folder`, unless that is "", and
    asks processes to execute scripts.

    Returns: `failed`, an error by process id; or one `error` of all, `message` and `version`.
    """
    if not process_files.lives(process):
        return {"error": "ProcessLookupError", "message": ""}
    words_ = [*place.enter, _interpreter(process, place), "-I", "-S", "-c", _ASK, folder, json.dumps(asked)]
    env = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    try:
        said = _said(words_, env)
    except OSError as error:
        return {"error": "start", "message": str(error)}
    return _answer(said)


def _interpreter(process: ProcessFiles, place: Place) -> str:
    """Return dynotune's own interpreter if it can ask the process, else the process's."""
    if not place.enter and version_of(process) == sys.version_info[:2] and sys.executable:
        return sys.executable
    if place.root != "/" and process.executable.startswith(f"{place.root}/"):
        return process.executable[len(place.root) :]
    return process.executable


def _said(words_: list[str], env: dict[str, str]) -> bytes:
    """Return what a program prints within `ASK_S` seconds, and end it.

    Raises OSError: it cannot be started.
    """
    child = subprocess.Popen(
        words_,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=env,
        cwd="/",
        start_new_session=True,
    )
    assert child.stdout is not None
    said, until_s = b"", time.monotonic() + ASK_S
    with child.stdout as output:
        while (
            len(said) < _MOST_BYTES
            and select.select([output], [], [], max(0.0, until_s - time.monotonic()))[0]
        ):
            if not (piece := os.read(output.fileno(), _MOST_BYTES)):
                break
            said += piece
        else:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    return said[:_MOST_BYTES]


def _answer(said: bytes) -> dict[str, Any]:
    """Read the last line that is JSON: it may come from a container, so its form is not trusted."""
    lines = said.decode(errors="replace").strip().splitlines() or ["it said nothing"]
    found: Any = None
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(line)
    if found is None:
        return {"error": "start", "message": lines[-1]}
    if isinstance(found, dict) and isinstance(found.get("error"), str):
        return found
    failed = found.get("failed") if isinstance(found, dict) else None
    if not isinstance(failed, dict) or not all(
        isinstance(one, dict) and isinstance(one.get("error"), str) for one in failed.values()
    ):
        return {"error": "start", "message": "its interpreter gave no answer that dynotune knows"}
    return {"failed": failed}


def _refused(answer: dict[str, Any], process: ProcessFiles) -> CannotRunHere:
    kind, message = str(answer["error"]), words.plain(str(answer.get("message", "")), longest=300)
    pid = process.pid
    if kind == "version":
        found = answer.get("version")
        parts = found[:3] if isinstance(found, list) else []
        version = ".".join(str(part) for part in parts if isinstance(part, int))
        return CannotRunHere(
            f"Process {pid} runs Python {version}, and the agent can be loaded from Python 3.14 on.",
            hint="Start the program with KINETO_USE_DAEMON=1 to record it later, or by dynotune diagnose.",
        )
    if kind == "RuntimeError" and "not enabled" in message:
        return CannotRunHere(
            f"Remote debugging is switched off in process {pid}.",
            hint="Start the program without PYTHON_DISABLE_REMOTE_DEBUG and -X disable-remote-debug.",
        )
    if kind == "PermissionError":
        return CannotRunHere(
            f"Process {pid} may not be traced by this user, which loading the agent needs: {message}.",
            hint="Run dynotune as root, with CAP_SYS_PTRACE, or with kernel.yama.ptrace_scope 0.",
        )
    if kind == "ProcessLookupError" or process_files.read(pid) is None or "in the remote process" in message:
        return CannotRunHere(
            f"Process {pid} has ended, or is about to.", hint="Give the id of a process that runs."
        )
    return CannotRunHere(
        f"The agent could not be loaded into process {pid}: {message or kind}.",
        hint="Leave --record out: dynotune then only looks from outside.",
    )


def _has_option(arguments: Sequence[str]) -> bool:
    before = [word for word in arguments[1:8] if word.startswith("-") or word == "disable-remote-debug"]
    return any(word.removeprefix("-X") == "disable-remote-debug" for word in before)


def _own_pid(pid: int, proc: Path) -> int:
    """Return the id of a process within its own namespace of process ids."""
    status = process_files.content(proc / str(pid) / "status") or b""
    found = re.search(rb"^NSpid:((?:\s+\d+)+)", status, re.MULTILINE)
    return int(found[1].split()[-1]) if found else pid
