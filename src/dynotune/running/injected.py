"""Load the agent into a Python that runs, from version 3.14 on, through `sys.remote_exec`.

The target's own interpreter asks for this: both have to be of one version. It runs in the target's file
system, where the agent's code and the script of a few lines lie that the target's main thread executes at its
next instruction. The script starts a thread, which looks at a deadline and at dynotune's lock before it does
anything. So what was asked for and never executed, because the main thread is stuck in a call, does nothing
if it is executed later.

Source: PEP 768, and Python/remote_debugging.c of CPython 3.14.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dynotune.launch.process import environment
from dynotune.running import process_files
from dynotune.running.process_files import PROC, ProcessFiles
from dynotune.schema import private
from dynotune.schema.errors import CannotRunHere
from dynotune.schema.facts import Unknown
from dynotune.text import words

OLDEST = (3, 14)
LOCK, LEAVING, FAILED = "held.lock", "leaving", "failed.txt"
ASK_S = 60.0
"""Seconds that the target's interpreter may take to start, compile the agent and ask."""
BEGIN_S = 20.0
"""Seconds in which the target's main thread has to come to its next instruction."""
DISABLED = "PYTHON_DISABLE_REMOTE_DEBUG"
NOTHING = "/dev/null"
"""Path of a script that does nothing: asked for in place of one that nobody waits for any more."""

TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")

_VERSION = re.compile(r"python(\d+)\.(\d+)t?(?:[/.]|$)")

_ASK = """\
import compileall, json, os, sys
folder, asked = sys.argv[1], json.loads(sys.argv[2])
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
    try:
        os.unlink(script)
        if time.monotonic() > until_s:
            return
        with open(os.path.join(folder, {lock!r})) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return
            except OSError:
                pass  # dynotune holds it
        why = "" if "torch" in sys.modules else "no torch"
        if name in sys.modules:
            why = "agent"
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
        sys.modules.pop(name, None)
import _thread
_thread.start_new_thread(begin, ())
"""


class Place(NamedTuple):
    """Where a folder for the agent can be made, so that the target sees it.

    Args:
        base: an existing or new folder, by dynotune's path.
        root: what dynotune has to put before a path of the target's; "" if both see the same files.
        enter: words before a command that is to run in the target's file system.
        pid: the target's process id as such a command sees it.
    """

    base: Path
    root: str
    enter: tuple[str, ...]
    pid: int

    def of_target(self, path: Path) -> str:
        """Return a path below `base` as the target sees it."""
        return str(path).removeprefix(self.root) if self.root else str(path)


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
    return ""


def place_of(process: ProcessFiles, proc: Path = PROC) -> Place | Unknown:
    """Return where the agent's files can lie for a process; Unknown if nowhere."""
    folder, ours = proc / str(process.pid), proc / "self"
    root, mine = (process_files.link(one / "root") for one in (folder, ours))
    same_mount, same_pids = (
        process_files.link(folder / "ns" / name) == process_files.link(ours / "ns" / name)
        for name in ("mnt", "pid")
    )
    if not root:
        return Unknown("its file system cannot be read; it needs root, or the right to trace")
    if same_mount and root == mine:
        return Place(private.state_folder() / "joined", "", (), process.pid)
    enter = shutil.which("nsenter")
    if enter is None:
        return Unknown(
            "it runs in a container, and nsenter (util-linux), which could enter the container, is not "
            "installed"
        )
    top = root if same_mount else str(folder / "root")
    words_ = [enter, "--target", str(process.pid), "--root"]
    words_ += [] if same_mount else ["--mount"]
    words_ += [] if same_pids else ["--pid"]
    folders = [top + path for path in TEMPORARY if _is_open(top + path)]
    if not folders:
        return Unknown("it runs in a container without a folder for temporary files")
    base = Path(folders[0]) / f"dynotune-{os.geteuid()}"
    return Place(base, top, (*words_, "--"), _own_pid(process.pid, proc))


def copy_agent(folder: Path) -> None:
    """Copy the agent's sources into a folder that the target sees, where its own interpreter compiles them.

    Readers of traces know the agent's frames by the names of its folders.
    """
    left = shutil.ignore_patterns("__pycache__", "fake", "bootstrap")
    shutil.copytree(environment.AGENT, folder / "dynotune" / "agent", ignore=left)


def load(processes: Sequence[ProcessFiles], places: Sequence[Place], folder: Path, num_needed: int) -> None:
    """Ask each process to execute a script that loads the agent.

    Raises CannotRunHere: one of the first `num_needed` cannot be asked. What the others were asked for does
    nothing once dynotune lets go of its lock.
    """
    until_s = time.monotonic() + BEGIN_S
    asked = []
    for process, place in zip(processes, places, strict=True):
        script = folder / f"begin-{process.pid}.py"
        values = {"folder": place.of_target(folder), "script": place.of_target(script)}
        text = _BEGIN.format(**values, pid=process.pid, until_s=until_s, lock=LOCK, failed=FAILED)
        script.touch(mode=0o600)
        script.write_text(text)
        asked.append((place.pid, values["script"]))
    answer = _ask(processes[0], places[0], places[0].of_target(folder), asked)
    if "error" in answer:
        raise _refused(answer, processes[0])
    for process, place in zip(processes[:num_needed], places, strict=False):
        if (failed := answer.get("failed", {}).get(str(place.pid))) is not None:
            raise _refused(failed, process)


def take_back(process: ProcessFiles, place: Place) -> None:
    """Have a process execute nothing in place of a script that it has not executed yet."""
    _ask(process, place, "", [(place.pid, NOTHING)])


def _ask(process: ProcessFiles, place: Place, folder: str, asked: list[tuple[int, str]]) -> dict[str, Any]:
    program = process.executable.removeprefix(place.root if place.root.startswith("/proc") else "")
    if place.root and program.startswith(place.root):
        program = program[len(place.root) :]
    words_ = [*place.enter, program, "-I", "-S", "-c", _ASK, folder, json.dumps(asked)]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LD_"))}
    try:
        done = subprocess.run(
            words_,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ASK_S,
            env=env,
            cwd="/",
            check=False,
        )
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1]) if done.stdout.strip() else {}
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return {"error": "start", "message": str(error)}
    if not found:
        last = (done.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
        return {"error": "start", "message": last}
    return found


def _refused(answer: dict[str, Any], process: ProcessFiles) -> CannotRunHere:
    kind, message = str(answer["error"]), words.plain(str(answer.get("message", "")), longest=300)
    pid = process.pid
    if kind == "version":
        version = ".".join(map(str, answer.get("version", [])))
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


def _is_open(path: str) -> bool:
    return Path(path).is_dir() and os.access(path, os.W_OK | os.X_OK)


def _own_pid(pid: int, proc: Path) -> int:
    """Return the id of a process within its own namespace of process ids."""
    status = process_files.content(proc / str(pid) / "status") or b""
    found = re.search(rb"^NSpid:((?:\s+\d+)+)", status, re.MULTILINE)
    return int(found[1].split()[-1]) if found else pid
