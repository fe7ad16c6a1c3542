"""The machine that a command runs on: what is known of it, and having it to oneself."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol

from dynotune import probe
from dynotune.launch import measuring
from dynotune.measure.live.request import Watcher
from dynotune.schema.errors import CannotRunHere
from dynotune.schema.facts import Facts, Unknown

SAME = ("host.cpu", "host.num_cores", "gpu.name", "gpu.count", "torch.version")
"""Where one of these differs, times cannot be compared."""


class Command(Protocol):
    """What is asked to be run, by whatever request. `lock`: wait for others that measure."""

    @property
    def command(self) -> list[str]: ...

    @property
    def cwd(self) -> Path: ...

    @property
    def env(self) -> dict[str, str]: ...

    @property
    def lock(self) -> bool: ...


def facts_of(request: Command) -> Facts:
    """What is known of machine and target before anything runs."""
    facts: Facts = {**probe.host.facts(), **probe.nvml.facts(request.env)}
    python = probe.interpreter(request.command, request.env, request.cwd)
    if isinstance(python, str):
        facts |= probe.torch_build.ask(python, request.cwd, request.env)
    else:
        facts |= dict.fromkeys(probe.torch_build.NAMES, python)
    return facts


def refuse_another_machine(what: str, before: Facts, now: Facts) -> None:
    """Refuse to go on with a comparison or study that was begun elsewhere.

    Raises:
        CannotRunHere: it was.
    """
    moved = [name for name in SAME if now.get(name) != before.get(name)]
    if moved:
        raise CannotRunHere(
            f"This {what} was begun elsewhere: {', '.join(moved)} differ. Runs of two machines say nothing together.",
            hint="Start it anew here.",
        )


def alone(request: Command, watcher: Watcher) -> AbstractContextManager[None]:
    def waits(pid: int | None) -> None:
        who = f"another dynotune (process {pid})" if pid else "another dynotune"
        watcher.say(f"Waiting: {who} is measuring on the same cores or GPU. --no-lock does not wait.")

    if not request.lock:
        return nullcontext()
    from platformdirs import user_state_path

    gpus = probe.nvml.visible_gpus(request.env)
    return measuring(
        # Not below the run folder: comparisons with different --run-dir share the cores all the same.
        user_state_path("dynotune"),
        cpus=probe.host.usable_cpus(),
        gpus=None if isinstance(gpus, Unknown) else gpus,
        on_wait=waits,
    )
