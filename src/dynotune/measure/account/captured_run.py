"""Run a command to its end as measured runs do, with its output kept in files, and account for its time."""

from __future__ import annotations

import msgspec

from dynotune.launch import new_run_folder
from dynotune.measure.account.energy import EnergyMeter
from dynotune.measure.account.whole_run import ACCOUNT_FILE, account, priced
from dynotune.measure.live import Watcher, checked_facts, machine_lock
from dynotune.measure.live.launch_plan import launch_plan
from dynotune.measure.live.live_run import run_once
from dynotune.measure.live.outcome import Outcome
from dynotune.schema import document
from dynotune.schema.account import RunAccount
from dynotune.schema.recipe import Recipe
from dynotune.schema.run import LIMIT_S, Plan, RunSpec
from dynotune.text import words


def accounted(run: RunSpec, watcher: Watcher, *, recipe: Recipe | None = None) -> tuple[RunAccount, Outcome]:
    """Run the command to its end, or for `run.timeout_s`, and write `account.json` into its run folder.

    A command that ends with an error is accounted for, too.

    Args:
        recipe: the recipe whose settings the run has.

    Raises UsageError, CannotRunHere: the command cannot be started, or the record cannot be written.
    """
    facts = checked_facts(run, None, watcher)
    limit_s = run.timeout_s or LIMIT_S
    with machine_lock(run, watcher):
        folder = new_run_folder(run.base)
        launch = launch_plan(
            run,
            run.settings,
            folder=folder,
            label="the accounted run",
            purpose="run",
            facts=facts,
            plan=Plan(account=True),
            times_start=True,
            run_to_end=True,
        )
        watcher.running("the command, to its end")
        meter = EnergyMeter(launch.env)
        outcome = run_once(launch, folder=folder, limit_s=limit_s, enough=lambda records: False)
        energy_j = meter.joules()
    begin_s, end_s = outcome.launched_s, outcome.launched_s + (outcome.run.wall_s or 0.0)
    found = account(outcome.all_records, begin_s, end_s, command=run.command, exit_code=outcome.run.exit_code)
    notes = found.notes
    if outcome.run.ended_by == "timeout":
        notes = [*notes, f"the command was ended after {words.duration(limit_s)}, which --timeout changes"]
    found = msgspec.structs.replace(found, id=outcome.run.id, notes=notes)
    found = priced(found, run.settings, recipe, energy_j)
    document.write(folder / ACCOUNT_FILE, found)
    return found, outcome
