"""Account for the whole time of a run, from its records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from dynotune.launch.records import EPOCH, Record, Records
from dynotune.measure.account.processes import main_record
from dynotune.measure.account.rows import Rows
from dynotune.schema import document
from dynotune.schema.account import AccountRow, RunAccount, SavedTime
from dynotune.schema.events import SamplingEnded, StacksSampled, StartSpan, TorchImported
from dynotune.schema.facts import Unknown
from dynotune.schema.recipe import Recipe
from dynotune.schema.run import Run
from dynotune.schema.setting import Setting
from dynotune.text import words

SHELLS = ("sh", "bash", "dash", "ash", "ksh", "zsh", "fish")
ACCOUNT_FILE = "account.json"
THOUSAND = 1000
NO_PYTHON = "no Python of the command began a record, so its time is not known in parts"
NOT_SAMPLED = "the main thread's stack was not sampled: the process ended at once, or was forked"
NO_STEP = "no step was found, so all of the program counts as its start"
FEW_STEPS, FEW_EPOCHS = "the run had fewer than two steps", "the run had fewer than two epochs"
OF_TIME = "the recipe's proof is of time; dynotune tune --objective energy proves energy"
OF_ENERGY = "the recipe's proof is of energy"
WITHOUT_PTX = (
    "PTX that the driver compiles is not told apart: it is part of the row in which a kernel is first called"
)


def account_of_run(
    folder: Path,
    run: Run,
    launched_s: float,
    *,
    recipe: Recipe | None = None,
    energy_j: float | Unknown | None = None,
) -> RunAccount:
    """Account for a run that has ended, and write `account.json` into its folder.

    Args:
        launched_s: time of the launch (CLOCK_MONOTONIC).
        recipe: the recipe whose settings the run had.
        energy_j: energy of the GPUs; None if it was not asked for.

    Raises:
        RecordError: a record of the run's processes cannot be read.
        CannotRunHere: the run was not recorded for an account, or the file cannot be written.
    """
    wall_s = run.wall_s or 0.0
    found = account(
        Records(folder).update(),
        launched_s,
        launched_s + wall_s,
        command=run.command,
        exit_code=run.exit_code,
    )
    found = priced(msgspec.structs.replace(found, id=run.id), run.settings, recipe, energy_j)
    document.write(folder / ACCOUNT_FILE, found)
    return found


def priced(
    found: RunAccount, settings: Sequence[Setting], recipe: Recipe | None, energy_j: float | Unknown | None
) -> RunAccount:
    """Return the account of a run with these settings with its energy, and with what the recipe's settings
    save.

    `energy_j`: None if it was not asked for.
    """
    if energy_j is not None:
        found = msgspec.structs.replace(
            found,
            energy_j=energy_j,
            per_thousand_steps_j=_part_j(energy_j, found.per_thousand_steps_s, found.wall_s, FEW_STEPS),
            per_epoch_j=_part_j(energy_j, found.per_epoch_s, found.wall_s, FEW_EPOCHS),
        )
    return found if recipe is None else msgspec.structs.replace(found, saved=saved(recipe, settings, found))


def _part_j(energy_j: float | Unknown, took_s: float | None, wall_s: float, few: str) -> float | Unknown:
    """Return the energy of `took_s` of a run, in proportion to its time. `few`: why `took_s` is not known."""
    if isinstance(energy_j, Unknown):
        return energy_j
    return Unknown(few) if took_s is None or not wall_s else energy_j * took_s / wall_s


def account(
    records: Sequence[Record],
    launched_s: float,
    ended_s: float,
    *,
    command: Sequence[str],
    exit_code: int | None = None,
    is_whole: bool = True,
) -> RunAccount:
    """Account for the time from `launched_s` to `ended_s` (CLOCK_MONOTONIC) of a command.

    `is_whole`: whether the command ended then.
    """
    main, wall_s = main_record(records), ended_s - launched_s
    about = RunAccount(command=list(command), wall_s=wall_s, exit_code=exit_code, is_whole=is_whole)
    if main is None:
        row = AccountRow("unexplained", "unexplained", wall_s)
        return msgspec.structs.replace(about, rows=[row], notes=[NO_PYTHON])
    was_killed = not is_whole or (exit_code or 0) < 0
    by_shell = _is_by_shell(command)
    rows = Rows(records, main, launched_s, ended_s, was_killed=was_killed, by_shell=by_shell)
    ends = [step.end_s for step in main.steps if step.end_s <= ended_s]
    epochs = [step.end_s for step in main.steps if step.flags & EPOCH and step.end_s <= ended_s]
    return msgspec.structs.replace(
        about,
        pid=main.pid,
        num_processes=len(records),
        rows=rows.rows(),
        step=main.step or "",
        num_steps=len(ends),
        num_epochs=len(epochs),
        per_thousand_steps_s=_mean_apart_s(ends, THOUSAND),
        per_epoch_s=_mean_apart_s(epochs, 1),
        unexplained_stack=rows.unexplained_stack,
        notes=list(_notes(main)),
    )


def saved(recipe: Recipe, settings: Sequence[Setting], found: RunAccount) -> list[SavedTime]:
    """Return what the proved settings of a recipe save in 1,000 steps, and in an epoch, of a run that has
    them.

    The steps count, not what lies between them. A proof of time says nothing of energy, since power is
    another with the setting, and a proof of energy nothing of time. Other objectives are left out, and
    settings that the run did not have.
    """
    applied = {setting.knob: setting for setting in settings}
    objective = recipe.recipe.objective
    all_s = found.part_s("steps") + found.part_s("between")
    if objective not in ("throughput", "energy") or found.num_steps < 2 or not all_s:
        return []
    in_steps = found.part_s("steps") / all_s

    def more(of: float | Unknown, speedup: float) -> float | Unknown:
        return of if isinstance(of, Unknown) else (speedup - 1) * of * in_steps

    thousand_s: float | Unknown = found.per_thousand_steps_s or Unknown(FEW_STEPS)
    epoch_s: float | Unknown = Unknown(FEW_EPOCHS) if found.per_epoch_s is None else found.per_epoch_s
    thousand_j = found.per_thousand_steps_j
    if objective == "energy":
        thousand_s = epoch_s = Unknown(OF_ENERGY)
    else:
        thousand_j = Unknown(OF_TIME)
    return [
        SavedTime(
            str(applied[proof.knob]),
            proof.speedup,
            proof.ci,
            per_thousand_steps_s=more(thousand_s, proof.speedup),
            per_epoch_s=more(epoch_s, proof.speedup),
            per_thousand_steps_j=more(thousand_j, proof.speedup),
        )
        for proof in recipe.proof
        if proof.knob in applied
        and applied[proof.knob].value == (recipe.settings[proof.knob] if proof.value is None else proof.value)
    ]


def _is_by_shell(command: Sequence[str]) -> bool:
    """Tell whether the command is a shell that lives beside its Pythons: by one simple command, it replaces
    itself."""
    if not command or Path(command[0]).name not in SHELLS:
        return False
    return command[1:2] != ["-c"] or any(sign in " ".join(command[2:]) for sign in ";&|\n")


def _mean_apart_s(times: Sequence[float], num: int) -> float | None:
    """Return the mean time between neighbours, `num` times; None with fewer than two."""
    if len(times) < 2:
        return None
    return num * (times[-1] - times[0]) / (len(times) - 1)


def _notes(main: Record) -> Iterator[str]:
    ended = main.last(SamplingEnded)
    if ended is not None:
        after = f" after {words.duration(ended.at_s - main.start_s)}" if main.last(StacksSampled) else ""
        yield f"stacks were not sampled{after}: {ended.why}"
    elif not main.last(StacksSampled):
        yield NOT_SAMPLED
    if not main.steps:
        yield NO_STEP
    torch = main.last(TorchImported)
    if torch is not None and torch.cuda and any(span.phase == "cuda_start" for span in main.all(StartSpan)):
        yield WITHOUT_PTX
