"""The machine that a command runs on: what is known of it, and having it to oneself."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from dynotune import probe
from dynotune.launch import measuring
from dynotune.measure.live.request import Watcher
from dynotune.schema.errors import CannotRunHere
from dynotune.schema.facts import Facts, Unknown
from dynotune.schema.run import RunSpec

SAME = ("host.cpu", "host.num_cores", "gpu.name", "gpu.count", "torch.version")
"""Where one of these differs, times cannot be compared."""


def facts_of(run: RunSpec) -> Facts:
    """What is known of machine and target before anything runs."""
    facts: Facts = {**probe.host.facts(), **probe.nvml.facts(run.env)}
    python = probe.interpreter(run.command, run.env, run.cwd)
    if isinstance(python, str):
        facts |= probe.torch_build.ask(python, run.cwd, run.env)
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


def machine_lock(run: RunSpec, watcher: Watcher) -> AbstractContextManager[None]:
    """Wait until no other dynotune measures on the same cores or GPUs, and keep others waiting until left."""

    def waits(pid: int | None) -> None:
        who = f"another dynotune (process {pid})" if pid else "another dynotune"
        watcher.say(f"Waiting: {who} is measuring on the same cores or GPU. --no-lock does not wait.")

    if not run.lock:
        return nullcontext()
    from platformdirs import user_state_path

    gpus = probe.nvml.visible_gpus(run.env)
    return measuring(
        # Not below the run folder: comparisons with different --run-dir share the cores all the same.
        user_state_path("dynotune"),
        cpus=probe.host.usable_cpus(),
        gpus=None if isinstance(gpus, Unknown) else gpus,
        on_wait=waits,
    )
