"""Reserve the machine for one dynotune, and report other programs that use it."""

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from dynotune import probe
from dynotune.launch import measuring, sweep
from dynotune.measure.live.request import Watcher
from dynotune.schema import private
from dynotune.schema.facts import Unknown
from dynotune.schema.run import RunSpec
from dynotune.text import words

BUSY = 0.4
"""Share of the cores above which the work of other programs is reported."""


@contextmanager
def machine_lock(run: RunSpec, watcher: Watcher) -> Iterator[None]:
    """Wait until no other dynotune measures on the same cores or GPUs; make others wait while the block runs.

    Then report other programs that use much of the cores.
    """

    def waits(pid: int | None) -> None:
        who, what = f"another dynotune (process {pid})" if pid else "another dynotune", ""
        with contextlib.suppress(psutil.Error):
            what = (
                f": {words.plain(words.command(psutil.Process(pid).cmdline()[1:]), longest=120)}"
                if pid
                else ""
            )
        watcher.say(f"Waiting: {who} is measuring on the same cores or GPU{what}. --no-lock does not wait.")
        watcher.running("waiting for the other dynotune")

    _sweep(watcher)
    if not run.lock:
        yield
        return
    gpus = probe.nvml.visible_gpus(run.env)
    with measuring(
        # Keep the lock outside the run folder: comparisons with different --run-dir still share the cores.
        private.state_folder(),
        cpus=probe.host.usable_cpus(),
        gpus=None if isinstance(gpus, Unknown) else gpus,
        on_wait=waits,
    ):
        if busy := _busy():
            watcher.warn(busy)
        yield


def _sweep(watcher: Watcher) -> None:
    """End and remove the remains of an earlier killed run, so that remains neither disturb nor fill the
    disk."""
    left = sweep()
    if left.num_processes or left.num_bytes:
        watcher.say(
            f"Cleaned up after an earlier run that was killed: processes ended: {left.num_processes}; "
            "temporary files "
            f"removed: {words.num_bytes(left.num_bytes)}."
        )


def _busy() -> str:
    cpus = probe.host.usable_cpus()
    found = probe.neighbours(cpus)
    if found is None or found.num_cores < BUSY * len(cpus):
        return ""
    which = (
        f": {found.name} (process {found.pid}) {found.most_cores:.1f} of them"
        if found.most_cores > 0.1
        else ""
    )
    return (
        f"Other programs use {found.num_cores:.1f} of {len(cpus)} cores{which}. Results will be less "
        "exact and take longer than on a quiet machine."
    )
