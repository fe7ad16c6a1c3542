"""Collect the facts of the environment that a running process has: its variables, its interpreter, its
cores."""

from __future__ import annotations

import os
import resource
from collections.abc import Collection
from pathlib import Path

from dynotune import probe
from dynotune.running import process_files
from dynotune.running.process_files import PROC, ProcessFiles
from dynotune.schema.facts import Facts, Unknown

DEADLINE_S = 4.0
OF_PROGRAM = Unknown("the program uses the GPU, and in a container others cannot be told from it")
_OF_USE = ("processes", "num_processes", "utilisation_percent", "memory_used_bytes")
OF_DYNOTUNE = "/dynotune/agent/"
"""A part of the folder that `dynotune run` puts first on PYTHONPATH."""


def facts(process: ProcessFiles, proc: Path = PROC) -> Facts:
    """Return the facts of machine, environment and interpreter as this process has them.

    The interpreter is started once more to be asked, with the process's variables, if it lies in a file
    system that this process sees as well.
    """
    folder = proc / str(process.pid)
    environment = process.environment
    env = {} if isinstance(environment, Unknown) else own_variables(environment)
    cwd = process_files.link(folder / "cwd")
    elsewhere = in_another(process.pid, "mnt", proc)
    python = elsewhere or interpreter(process, env, cwd)
    found = probe.machine(
        env,
        python=python,
        cwd=cwd if not elsewhere and Path(cwd).is_dir() else None,
        deadline_s=DEADLINE_S,
        affinity=affinity(process.pid),
        pid=process.pid,
    )
    if isinstance(environment, Unknown):
        found |= {name: environment for name in found if name.startswith("env.")}
    return found | limits(process.pid)


def without_own_gpu_use(facts: Facts, pids: Collection[int]) -> Facts:
    """Return the facts without what the program itself does on its GPUs: it is no other process there.

    `pids`: of the program. If GPUs name processes by ids of another namespace, all that the GPU does may be
        the program's.
    """
    found = dict(facts)
    for name, processes in facts.items():
        gpu, _, rest = name.rpartition(".")
        if rest != "processes" or not gpu.startswith("gpu"):
            continue
        if not facts.get("gpu.pids_comparable"):
            used = (f"{gpu}.{one}" for one in _OF_USE)
            found |= {one: OF_PROGRAM for one in used if not isinstance(facts.get(one), Unknown)}
        elif isinstance(processes, list):
            others = [one for one in processes if int(str(one).partition(" ")[0]) not in pids]
            found |= {name: others, f"{gpu}.num_processes": len(others)}
    return found


def own_variables(environment: dict[str, str]) -> dict[str, str]:
    """Return the variables without those by which a dynotune that started the program reaches into it."""
    env = {name: value for name, value in environment.items() if not name.startswith("DYNOTUNE_")}
    if "PYTHONPATH" in env:
        parts = [part for part in env["PYTHONPATH"].split(os.pathsep) if OF_DYNOTUNE not in part]
        env["PYTHONPATH"] = os.pathsep.join(parts)
    return env


def interpreter(process: ProcessFiles, env: dict[str, str], cwd: str) -> str | Unknown:
    """Return the interpreter by the name it was started with, which tells a virtual environment, if that is
    it."""
    found = (
        probe.interpreter(list(process.arguments[:1]), env, cwd)
        if process.arguments
        else Unknown("it has no name")
    )
    if isinstance(found, str) and os.path.realpath(found) == process.executable:
        return found
    if Path(process.executable).is_file():
        return process.executable
    return Unknown("the interpreter of the process was replaced or removed after its start")


def in_another(pid: int, namespace: str, proc: Path = PROC) -> Unknown | None:
    """Return an Unknown if the process is in another namespace (`mnt`, `pid`) than this one, or has another
    root folder; else None."""
    files = [f"ns/{namespace}", *(["root"] if namespace == "mnt" else [])]
    pairs = [[process_files.link(proc / one / file) for one in (str(pid), "self")] for file in files]
    if all(not theirs or theirs == ours for theirs, ours in pairs):
        return None
    kind = {"mnt": "file systems of its own", "pid": "process ids of its own"}[namespace]
    return Unknown(f"the program runs in a container, with {kind}")


def affinity(pid: int) -> list[int] | None:
    try:
        return sorted(os.sched_getaffinity(pid))
    except OSError:
        return None


def limits(pid: int) -> Facts:
    """Return the limits of open files as the process has them."""
    try:
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    except OSError as error:
        unknown = Unknown(f"the limits of process {pid} cannot be read: {error.strerror}")
        return {"host.nofile_soft": unknown, "host.nofile_hard": unknown}
    values = (None if value == resource.RLIM_INFINITY else value for value in (soft, hard))
    return dict(zip(("host.nofile_soft", "host.nofile_hard"), values, strict=True))
