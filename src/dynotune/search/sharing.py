"""A study that several workers share: one leads it, the others run blocks for it.

A block, or a pair, is the unit: its runs are compared with each other, so one host makes all of them. All else of a
study (diagnosis, switches within one process, pilots, decisions) is the leader's. A worker's host must have the same
GPU, torch and code.
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
from dynotune.measure.live import Watcher, code_facts, lanes, machine_lock, refuse_another_machine
from dynotune.report.study import spent_s
from dynotune.schema import document
from dynotune.schema.errors import UsageError
from dynotune.schema.run import RunSpec
from dynotune.schema.setting import Setting
from dynotune.schema.study import Block, BlockResult, Study
from dynotune.search.bench import BASELINE, arm
from dynotune.search.real_bench import RealBench
from dynotune.search.running import OutOfTime, Search

if TYPE_CHECKING:
    from dynotune.fleet import Store


def asked_of(study: Study) -> str:
    """Return a digest of what the study was asked, which is the same on every host and at any time of it."""
    run = replace(
        study.run.recorded, cwd=Path("/"), base=Path("/"), lock=True, lanes=1, warmup_steps=None, window_steps=None
    )
    recipe = study.base_recipe.recipe if study.base_recipe is not None else None
    asked = [run, study.allow, study.extra, study.exclude, study.values, study.margin, recipe]
    return hashlib.sha256(document.encode(asked, indent=0)).hexdigest()


def named(study: Study, name: str) -> Study:
    """Return the study under this name; without one, under the script's and what tells it from others of that."""
    words = [*study.run.command, study.run.command[0]]
    script = Path(next((word for word in words if word.endswith(".py")), words[0])).stem
    return replace(study, name=name or f"{script}-{asked_of(study)[:8]}")


class Worker:
    """Runs blocks of a study that another worker leads.

    Args:
        run: the command here; `typed`: settings that the user typed here.
        folder: of its runs.
    """

    def __init__(self, run: RunSpec, typed: list[Setting], folder: Path, watcher: Watcher) -> None:
        self.run, self.folder, self.watcher = run, folder, watcher
        self._typed = [*run.settings, *typed]
        self._bench: RealBench | None = None
        self._is_warm = set[str]()

    def do(self, study: Study, block: Block) -> BlockResult:
        """Run the block. What leaves something in caches has a pilot before its first run: this host's are its own.

        Raises:
            UsageError: the block holds what only the user of this host may set, and did not.
            DynotuneError: the command as it is fails here.
        """
        study = document.completed(study, replace(self.run, settings=self._typed))
        arms = [arm(settings) for settings in block.arms]
        settings = (one for settings in block.arms for one in settings)
        if foreign := [one for one in settings if knobs.must_be_typed(one) and one not in self._typed]:
            what = f"The study would set {foreign[0]}, which only you may."
            raise UsageError(what, hint="Begin a study of your own: --study NAME.")
        if self._bench is None:
            self._bench = RealBench(self.run, self.folder, study, self.watcher, elapsed_s=spent_s(study))
        work, is_whole = Search(study, self._bench, lambda study: None, self.watcher), True
        warmed = {str(one.setting) for one in study.candidates if one.needs_warm_cache}
        try:
            with machine_lock(self.run, self.watcher):
                for one in [BASELINE, *arms]:
                    # Of the command as it is, this warms the page cache, and shows that it runs here at all.
                    if one.key not in self._is_warm and (one == BASELINE or warmed & {*map(str, one.settings)}):
                        work.run(one, "pilot", 0)
                    self._is_warm.add(one.key)
                work.in_turn(arms, block.phase, block.number, lanes.WHOLE, block.repeats)
        except OutOfTime:
            is_whole = False
        found, here = work.study, f"{socket.gethostname()}:{self.folder}"
        return BlockResult(
            trials=[replace(one, run=one.run and f"{here}/{one.run}") for one in found.trials[len(study.trials) :]],
            readback=found.readback,
            warnings=[f"{socket.gethostname()}: {text}" for text in self._bench.cautions()],
            out_of_time=not is_whole,
        )


def take_part(store: Store, study: Study, name: str, worker: Worker, lead: Callable[[Study], Study]) -> Study:
    """Lead the study, or run blocks of it, until it is finished; if its leader is lost, lead it on.

    Args:
        study: as this worker would begin it. `lead`: goes on with a study here, from where it stands.

    Raises:
        UsageError: the database has another study of this name.
        CannotRunHere: this host is unlike those that the study's runs were made on; the database is lost.
    """
    study = named(replace(study, facts={**study.facts, **code_facts(worker.run.cwd)}), name)
    store.enter(study, asked_of(study), str(worker.folder))
    worker.watcher.say(f"The study {study.name} is in the database: the same command elsewhere takes part in it.")
    known = store.patiently(partial(store.study, study.name))
    refuse_another_machine("study", known.facts, study.facts)
    while not known.finished:
        if store.patiently(store.lead):
            # Pilots that no window was made of yet are on the host that they ran on.
            known = lead(known if known.run_s is not None else replace(known, trials=[]))
            store.save(known, patiently=store.behind)
            return known
        if (taken := store.patiently(store.take)) is not None:
            result = worker.do(store.patiently(partial(store.study, study.name)), taken[1])
            if not store.patiently(partial(store.give, taken[0], result)):
                worker.watcher.say("The block was given to another worker meanwhile: these runs do not count.")
        else:
            worker.watcher.running(f"waiting for runs of the study {study.name}")
            store.wait()
        known = store.patiently(partial(store.study, study.name))
    return known
