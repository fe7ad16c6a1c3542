"""A study that several workers share: one worker leads, the others run blocks for it.

The unit of work is a block or a pair: its runs are compared with each other, so one host makes all of them.
The leader does all other work (diagnosis, switches within one process, pilots, decisions). A worker's host
must have the same GPU, torch and code.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dynotune import knobs
from dynotune.launch import new_run_folder
from dynotune.launch.process import origin
from dynotune.measure.bench import Journal
from dynotune.measure.live import Watcher, lanes, machine_lock, refuse_another_machine, shared_facts
from dynotune.report import Progress, console
from dynotune.report.study import spent_s
from dynotune.schema import document, redaction
from dynotune.schema.arm import BASELINE, arm
from dynotune.schema.errors import RecordError, UsageError
from dynotune.schema.run import RunSpec
from dynotune.schema.setting import Setting
from dynotune.schema.study import BlockResult, HostBlock, Study
from dynotune.search.real_bench import RealBench
from dynotune.search.running import OutOfTime, Search

if TYPE_CHECKING:
    from dynotune.fleet import Store


def asked_of(study: Study) -> str:
    """Return a digest of the study's request and of the code, the same on every host and at any time."""
    run = replace(
        study.run.recorded, cwd=Path("/"), base=Path("/"), lock=True, warmup_steps=None, window_steps=None
    )
    recipe, code = study.base_recipe and study.base_recipe.recipe, study.facts.get("code.sha256")
    asked = [run, recipe, code, study.allow, study.extra, study.exclude, study.values, study.margin]
    return hashlib.sha256(document.encode(asked, indent=0)).hexdigest()


class Worker:
    """Runs blocks of a study that another worker leads.

    Args:
        run: the command here; `typed`: settings that the user typed here besides the study's.
        folder: folder of its runs, marked as begun here.
    """

    def __init__(self, run: RunSpec, typed: list[Setting], folder: Path, watcher: Watcher) -> None:
        self.run, self.typed, self.folder, self.watcher = run, typed, folder, watcher
        self._place = f"{socket.gethostname()}:{folder}/"
        self._bench: RealBench | None = None

    def as_here(self, study: Study) -> Study:
        """Return the study with this host's runs marked as local, and with the command as typed here.

        Raises UsageError: the study would make a setting that only the user here may make.
        """
        window = {"warmup_steps": study.run.warmup_steps, "window_steps": study.run.window_steps}
        trials = [replace(one, run=one.run.removeprefix(self._place)) for one in study.trials]
        study = replace(study, run=replace(self.run.recorded, **window), trials=trials)
        typed = {redaction.redacted(str(one)) for one in (*self.run.settings, *self.typed)}
        if left := [one for one in origin.to_type(self.folder, study)[1] if str(one) not in typed]:
            what = (
                f"The study {study.name} sets {left[0]}, which could run foreign code and was not typed here."
            )
            raise UsageError(what, hint=f"If you trust it, type it here too: {knobs.how_to_type(left[0])}")
        return study

    def do(self, study: Study, block: HostBlock) -> BlockResult:
        """Run the block. Settings that fill caches get a pilot before their first run, as each host has its
        own caches.

        Raises DynotuneError: as `as_here`; the block is not the study's; or the command as it is fails here.
        """
        study, arms = self.as_here(study), [arm(settings) for settings in block.arms]
        if not {one for each in arms for one in each.settings} <= {one.setting for one in study.candidates}:
            raise RecordError(f"HostBlock {block.number} has settings that are not those of the study.")
        if self._bench is None:
            journal = Journal(study)  # the leader stores the study
            self._bench = RealBench(self.run, self.folder, journal, self.watcher, elapsed_s=spent_s(study))
        else:
            self._bench.journal.keep(study)
        work, is_whole = Search(self._bench, self.watcher), True
        warmed = {str(one.setting) for one in study.candidates if one.needs_warm_cache}
        try:
            for one in [BASELINE, *arms]:
                # For the baseline, this warms the page cache and shows that the command runs here at all.
                if one == BASELINE or warmed & {*map(str, one.settings)}:
                    work.pilot(one)
            work.in_turn(arms, block.phase, block.number, lanes.WHOLE, block.repeats)
        except OutOfTime:
            is_whole = False
        placed = [replace(one, run=self._place + one.run) for one in work.study.trials[len(study.trials) :]]
        told = [f"{socket.gethostname()}: {text}" for text in self._bench.cautions()]
        return BlockResult(
            trials=placed, readback=work.study.readback, warnings=told, out_of_time=not is_whole
        )


class NodeWorker(Worker):
    """A worker on a node of a Ray cluster, in the folder that all nodes share or in a folder that Ray copied.

    `study`: as it was begun, with the facts of the leading host.
    """

    def __init__(self, run: RunSpec, typed: list[Setting], study: Study) -> None:
        self._facts = shared_facts(run)
        if self._facts["code.sha256"] != study.facts["code.sha256"]:
            run = replace(run, cwd=Path.cwd())
            self._facts = shared_facts(run)
        folder = new_run_folder(run.base)
        origin.mark(folder, replace(study, run=replace(study.run, cwd=run.cwd)))
        super().__init__(run, typed, folder, Progress(console(stderr=True)))

    def refuse(self, study: Study) -> None:
        """Raise CannotRunHere: this host differs from the leading host."""
        refuse_another_machine("study", study.facts, self._facts)

    def do(self, study: Study, block: HostBlock) -> BlockResult:
        with machine_lock(self.run, self.watcher):
            return super().do(study, block)


def take_part(store: Store, study: Study, worker: Worker, lead: Callable[[Study], Study]) -> Study:
    """Lead the study, or run blocks of it, until it is finished; if its leader is lost, take over.

    Args:
        study: the study as this worker would begin it; without a name, one is derived from the command.
        lead: function that continues a study here from its current state.

    Raises:
        UsageError: the database has another study of this name, or a setting that only the user here may
            make.
        CannotRunHere: this host differs from those of the study's runs; or the database is lost.
    """
    run, watcher = worker.run, worker.watcher
    if secret := next((one for one in worker.typed if redaction.redacted(str(one)) != str(one)), None):
        raise UsageError(
            f"{secret.knob} holds a secret, and secrets must not be in a database.",
            hint="Leave --storage out.",
        )
    asked = asked_of(study)
    script = Path(next((word for word in run.command if word.endswith(".py")), run.command[0])).stem
    name = study.name or f"{script}-{asked[:8]}"
    known = partial(store.study, name)
    with machine_lock(run, watcher):
        store.enter(replace(study, name=name), asked, str(worker.folder))
        watcher.say(
            f"The study {name} is in the database. The same command on another machine takes part in it."
        )
        while True:
            # Become the leader before reading: the previous leader may have written until then.
            leads = store.patiently(store.lead)
            if (found := store.patiently(known)).finished:
                return found
            refuse_another_machine("study", found.facts, study.facts)
            if leads:
                # Pilots that led to no window yet are on the host that ran them.
                found = lead(worker.as_here(found if found.run_s is not None else replace(found, trials=[])))
                store.save(found, patiently=store.behind)
                if store.behind:
                    watcher.warn(
                        f"The database lacks the end of the study {name}, which is in {worker.folder}."
                    )
                return found
            if (taken := store.patiently(store.take)) is not None:
                result = worker.do(store.patiently(known), taken[1])
                if not store.patiently(partial(store.give, taken[0], result)):
                    watcher.say(
                        "The block was meanwhile given to another worker, so these runs do not count."
                    )
            else:
                watcher.running(f"waiting for other machines' runs of the study {name}")
                store.wait()
