"""Gather all facts of machine, container, interpreter and environment concurrently within a deadline."""

import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from dynotune.probe.facts import (
    compatibility,
    environment,
    gpu,
    host,
    host_memory,
    host_processors,
    torch_build,
)
from dynotune.probe.sources.interpreter import interpreter
from dynotune.schema.facts import Facts, Unknown

DEADLINE_S = 2.5
"""`doctor` must answer within 3 s; it needs the remaining time itself."""

# After the deadline, ending a child and reading its answer still takes time.
MARGIN_S = 0.2

_OF_HOST = (
    "cpu",
    "num_logical_cpus",
    "affinity",
    "cpu_quota",
    "num_cores",
    "memory_bytes",
    "kernel",
    "container",
)
HOST_NAMES = tuple(f"host.{name}" for name in _OF_HOST)


def machine(
    env: Mapping[str, str],
    *,
    python: str | Unknown | None = None,
    cwd: str | os.PathLike[str] | None = None,
    deadline_s: float = DEADLINE_S,
    root: Path = Path("/"),
    dev: Path = Path("/dev"),
    nvml: Any = None,
    affinity: Collection[int] | None = None,
    pid: int | None = None,
) -> Facts:
    """Return facts `host.*`, `gpu.*`, `python.*`, `torch.*`, `package.*`, `env.*` and `env_from.*`; never
    raise.

    A fact that is missing at the deadline is Unknown, with the deadline as the reason. No CUDA context is
    created.

    Args:
        env, cwd: environment (without the agent) and working directory of the command.
        python: interpreter of the command; None stands for the `python` of `env`.
        affinity: cores that the command may run on; None asks the kernel.
        pid: process with the variables of `env`, whose ancestors may have set them; None stands for this
            process.
    """
    until_s = time.monotonic() + deadline_s
    if python is None:
        python = interpreter(["python"], env, cwd)
        python = python if isinstance(python, str) else interpreter(["python3"], env, cwd)
    cpus = host.usable_cpus() if affinity is None else sorted(affinity)
    asked = {
        "the driver": (gpu.NAMES, lambda: gpu.facts(env, nvml=nvml, dev=dev, root=root)),
        "the kernel": (
            (*HOST_NAMES, *host_memory.NAMES, *host_processors.NAMES),
            lambda: {
                **host.facts(root, cpus),
                **host_memory.facts(root),
                **host_processors.facts(root, cpus),
            },
        ),
        "the interpreter": (torch_build.NAMES, lambda: _target(python, cwd, env, until_s - MARGIN_S)),
        "the processes above": (
            [f"env_from.{name}" for name in environment.reported(env)],
            lambda: environment.origins(env, os.getpid() if pid is None else pid, root),
        ),
    }
    answers = [_Answer(who, names, question) for who, (names, question) in asked.items()]
    found: Facts = environment.facts(env)
    for answer in answers:
        found |= answer.wait(until_s)
    return found | compatibility.facts(found)


def _target(
    python: str | Unknown, cwd: str | os.PathLike[str] | None, env: Mapping[str, str], until_s: float
) -> Facts:
    """Return the facts from the interpreter; import torch only if its architectures cannot be read
    otherwise."""
    found = torch_build.ask(python, cwd, env, timeout_s=max(0.1, until_s - time.monotonic()))
    left_s = until_s - time.monotonic()
    if (
        left_s > 0
        and isinstance(found["torch.arch_list"], Unknown)
        and isinstance(found["torch.version"], str)
    ):
        built = torch_build.ask_build(python, cwd, env, timeout_s=left_s)
        # Package versions are more exact than the versions that a build of torch reports.
        found |= {name: value for name, value in built.items() if isinstance(found.get(name), Unknown)}
    return found


class _Answer:
    """Run a question in its own thread; nobody waits for a thread that hangs."""

    def __init__(self, who: str, names: Sequence[str], question: Callable[[], Facts]) -> None:
        self._who, self._names, self._question = who, names, question
        self._facts: Facts | None = None
        self._began_s = time.monotonic()
        self._thread = threading.Thread(target=self._ask, name=f"dynotune-probe: {who}", daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        try:
            self._facts = self._question()
        except Exception as error:
            # A bug in one family of facts must not hide the others; the facts of that family carry the error.
            self._facts = dict.fromkeys(self._names, Unknown(f"asking {self._who} failed: {error!r}"))

    def wait(self, until_s: float) -> Facts:
        self._thread.join(max(0.0, until_s - time.monotonic()))
        if self._facts is not None:
            return self._facts
        waited_s = time.monotonic() - self._began_s
        return dict.fromkeys(self._names, Unknown(f"{self._who} did not answer within {waited_s:.1f} s"))
