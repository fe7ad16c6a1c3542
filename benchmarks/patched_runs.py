"""Patches of published programs, applied and run: whether the running program has the settings, and whether
git takes the patch back.

    python benchmarks/patched_runs.py --sources FOLDER --device cpu|cuda [--work FOLDER] [--only NAME]…
        [--until-s S]
    python benchmarks/patched_runs.py --device cpu --name NAME --folder FOLDER -- COMMAND
    python benchmarks/patched_runs.py --sources FOLDER --device cpu|cuda --turns N [--only NAME]…

FOLDER of the first line is that of `python -m benchmarks.field fetch`. Each program is copied and started as
its documentation says, once as published and once with the patch, until some steps were timed. The agent
changes nothing in either run: what each setting is, is read from loaders, optimizers and torch's switches. A
program that is done is kept; a second call goes on. The second line does this for any other program.

The third line compares speeds: a turn is one fresh start each of the program as published, of the same with
the placed settings as `dynotune run` applies them, and of the patched one, in random order. A value is the
time of a step in a window. Finished turns are kept; a second call goes on.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import scipy.stats

from dynotune import knobs
from dynotune.launch import last_lines
from dynotune.launch.records import Record
from dynotune.measure.live.launch_plan import launch_plan
from dynotune.measure.live.live_run import run_once
from dynotune.measure.live.machine import facts_of
from dynotune.recipes.patch import Patch, patch_of
from dynotune.schema.errors import CannotRunHere
from dynotune.schema.events import StateRead, Window
from dynotune.schema.facts import Facts
from dynotune.schema.run import Plan, RunSpec
from dynotune.schema.setting import Setting
from dynotune.schema.task import TimeWindow
from lab import result_file
from lab.field.programs import published
from lab.provenance import RESULTS, without_places
from lab.tuning.programs import folder_of

FIRST_STEP, NUM_STEPS = 6, 4
FIRST_TIMED, NUM_TIMED = 10, 30
LIMIT_S = 400.0
NUM_LINES = 4
READ: Mapping[str, Callable[[StateRead], set[Any]]] = {
    "loader.num_workers=2": lambda state: {loader.num_workers for loader in state.loaders},
    "loader.pin_memory=true": lambda state: {loader.pin_memory for loader in state.loaders},
    "loader.persistent_workers=true": lambda state: {loader.persistent_workers for loader in state.loaders},
    "optimizer.fused=true": lambda state: {optimizer.fused for optimizer in state.optimizers},
    "cudnn.benchmark=true": lambda state: {state.live.get("live.cudnn_benchmark")},
    "matmul.fp32_precision=high": lambda state: {state.live.get("live.matmul_fp32_precision")},
    "precision.autocast=bf16": lambda state: set(autocast_dtypes(state)),
}
"""Settings that are asked for, each with how its value is read in the running program."""
WANTED = {
    "loader.num_workers=2": 2,
    "matmul.fp32_precision=high": "tf32",
    "precision.autocast=bf16": "bfloat16",
}
"""The value that is read where a setting took effect, if it is not True."""


def autocast_dtypes(state: StateRead) -> list[str]:
    value = state.live.get("live.autocast_dtypes")
    return [str(each).removeprefix("torch.") for each in value] if isinstance(value, list) else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sources", type=Path)
    parser.add_argument("--name")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("command", nargs="*")
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument(
        "--until-s", type=float, default=float("inf"), help="begin no program after this time"
    )
    parser.add_argument("--turns", type=int, default=0, help="compare speeds in so many turns")
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    work = chosen.work or Path(tempfile.gettempdir()) / f"dynotune-patched-{chosen.device}"
    out = chosen.out / f"patched_runs_{chosen.device}.json"
    end_s = time.monotonic() + chosen.until_s
    if chosen.folder is not None:
        work.mkdir(parents=True, exist_ok=True)
        found = of_program(chosen.command, dict(os.environ), chosen.folder, work, chosen.device)
        keep(out, chosen.name, found)
    for program in published(chosen.sources, chosen.device) if chosen.sources is not None else []:
        if (chosen.only and program.name not in chosen.only) or time.monotonic() > end_s:
            continue
        if program.missing():
            continue
        folder, command = folder_of(program, work / "published"), program.command(chosen.device)
        if chosen.turns:
            compare(
                program.name,
                command,
                program.environment(),
                folder,
                work,
                out,
                turns=chosen.turns,
                end_s=end_s,
            )
            continue
        if program.name in result_file.read(out).get("programs", {}):
            continue
        keep(out, program.name, of_program(command, program.environment(), folder, work, chosen.device))
    print(table(result_file.read(out).get("programs", {})))
    print("\n".join(speeds(result_file.read(out).get("turns", {}))))


def keep(out: Path, name: str, found: dict[str, Any]) -> None:
    with result_file.opened(out) as result:
        result.setdefault("programs", {})[name] = found
    print(name, found, flush=True)


def of_program(
    command: list[str], env: dict[str, str], published_folder: Path, work: Path, device: str
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=work) as scratch:
        folder = copied(published_folder, Path(scratch))
        chosen = [knobs.parse(setting) for setting in READ]
        try:
            patch = patch_of(chosen, command, folder, folder, has_gpu=device == "cuda")
        except CannotRunHere as error:
            return {"refused": error.message}
        found: dict[str, Any] = {
            "placed": {str(setting): place for setting, place in patch.places.items()},
            "not_placed": {str(setting): reason for setting, reason in patch.refused.items()},
        }
        if not patch.diff:
            return found
        before = observed(command, env, folder, Path(scratch) / "before")
        contents = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        found["applied"] = git_apply(folder, patch)
        after = observed(command, env, folder, Path(scratch) / "after")
        git_apply(folder, patch, "-R")
        found["reversed"] = all(path.read_bytes() == content for path, content in contents.items())
        found["runs"] = {"published": told(before), "patched": told(after)}
        if isinstance(before, StateRead) and isinstance(after, StateRead):
            found["settings"] = {
                setting: {
                    "published": sorted(map(str, read(before))),
                    "patched": sorted(map(str, read(after))),
                    "took_effect": WANTED.get(setting, True) in read(after),
                }
                for setting, read in READ.items()
                if setting in found["placed"]
            }
        return found


def copied(published_folder: Path, scratch: Path) -> Path:
    folder = scratch / published_folder.name
    shutil.copytree(published_folder, folder, symlinks=True)
    if (beside := published_folder.parent / "data").is_dir():
        # Some programs read what lies beside their folder.
        (scratch / "data").symlink_to(beside)
    return folder


def compare(
    name: str,
    command: list[str],
    env: dict[str, str],
    published_folder: Path,
    work: Path,
    out: Path,
    *,
    turns: int,
    end_s: float,
) -> None:
    """Time turns of the program as published, with its recipe's settings, and patched; keep each."""
    with tempfile.TemporaryDirectory(dir=work) as scratch:
        folder = copied(published_folder, Path(scratch))
        wanted = [knobs.parse(setting) for setting in READ if "pin_memory" not in setting]
        patch = patch_of(wanted, command, folder, folder, has_gpu=False)
        placed = [setting for setting in wanted if str(setting) in set(map(str, patch.places))]
        (Path(scratch) / "patched").mkdir()
        patched = copied(published_folder, Path(scratch) / "patched")
        if not patch.diff or not git_apply(patched, patch):
            return
        facts = facts_of(RunSpec(command=command, cwd=folder, env=env, base=work, settings=placed))
        arms: dict[str, tuple[Path, Sequence[Setting]]] = {
            "published": (folder, []),
            "recipe": (folder, placed),
            "patched": (patched, []),
        }
        for turn in range(turns):
            kept = result_file.read(out).get("turns", {}).get(name, {}).get("steps_s", [])
            if turn < len(kept):
                continue
            times: dict[str, float | str] = {}
            for arm in random.Random(turn).sample(list(arms), len(arms)):
                if time.monotonic() > end_s:
                    return
                place, settings = arms[arm]
                run_folder = Path(scratch) / f"{turn}-{arm}"
                times[arm] = step_s(command, env, place, run_folder, settings, facts)
            with result_file.opened(out) as result:
                own = result.setdefault("turns", {}).setdefault(
                    name, {"settings": [str(each) for each in placed]}
                )
                own.setdefault("steps_s", []).append(times)
            print(name, times, flush=True)


def step_s(
    command: list[str],
    env: dict[str, str],
    folder: Path,
    run_folder: Path,
    settings: Sequence[Setting],
    facts: Facts,
) -> float | str:
    """Return the seconds of a step, or why there are none."""
    run_folder.mkdir()
    run = RunSpec(command=command, cwd=folder, env=env, base=run_folder, seed=0)
    tasks = [TimeWindow(num_steps=NUM_TIMED, at_step=FIRST_TIMED)]
    plan = launch_plan(
        run,
        settings,
        folder=run_folder,
        label="the program",
        purpose="pilot",
        facts=facts,
        plan=Plan(tasks=tasks),
    )
    outcome = run_once(plan, folder=run_folder, limit_s=LIMIT_S, enough=has_window)
    if not outcome.windows:
        return without_places(f"{outcome.run.ended_by}: {'; '.join(last_lines(run_folder, NUM_LINES))}")
    window = outcome.windows[0]
    return (window.end_s - window.begin_s) / window.num_steps


def speeds(turns: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield, per program, how many times as fast as published it is with its recipe, and patched, and the
    ratio of these: geometric means over turns, with 95% by Student's t."""
    for name, found in turns.items():
        whole = [one for one in found["steps_s"] if all(isinstance(value, float) for value in one.values())]
        told = [
            f"{what} {mean_ratio([one[over] / one[under] for one in whole])}"
            for what, over, under in (
                ("recipe", "published", "recipe"),
                ("patched", "published", "patched"),
                ("patched over recipe", "recipe", "patched"),
            )
        ]
        yield f"{name:<24} {len(whole)} turns: {'; '.join(told)}"


def mean_ratio(ratios: Sequence[float]) -> str:
    if not ratios:
        return "none"
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.mean(logs)
    if len(logs) < 2:
        return f"{math.exp(mean):.2f}"
    half = scipy.stats.t.ppf(0.975, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return f"{math.exp(mean):.2f} ({math.exp(mean - half):.2f} to {math.exp(mean + half):.2f})"


def observed(command: list[str], env: dict[str, str], folder: Path, run_folder: Path) -> StateRead | str:
    """Run the program until some steps were timed; return its state, or why there is none."""
    run_folder.mkdir()
    run = RunSpec(command=command, cwd=folder, env=env, base=run_folder, seed=0)
    tasks = [TimeWindow(num_steps=NUM_STEPS, at_step=FIRST_STEP)]
    plan = launch_plan(
        run,
        [],
        folder=run_folder,
        label="the program",
        purpose="pilot",
        facts={},
        plan=Plan(observe=True, tasks=tasks),
    )
    outcome = run_once(plan, folder=run_folder, limit_s=LIMIT_S, enough=has_state)
    states = [state for record in outcome.records if (state := record.last(StateRead)) is not None]
    if states:
        return states[0]
    lines = "; ".join(last_lines(run_folder, NUM_LINES))
    return without_places(f"{outcome.run.ended_by}, exit code {outcome.run.exit_code}: {lines}")


def has_window(records: list[Record]) -> bool:
    return any(record.last(Window) is not None for record in records)


def has_state(records: list[Record]) -> bool:
    return any(record.last(StateRead) is not None for record in records)


def told(state: StateRead | str) -> str:
    return state if isinstance(state, str) else "steps were made"


def git_apply(root: Path, patch: Patch, *options: str) -> bool:
    done = subprocess.run(["git", "apply", *options, "-"], cwd=root, input=patch.diff, check=False)
    return done.returncode == 0


def table(programs: Mapping[str, Mapping[str, Any]]) -> str:
    lines = []
    for name, found in programs.items():
        settings = found.get("settings", {})
        took = sum(setting["took_effect"] for setting in settings.values())
        lines.append(
            f"{name:<28} placed {len(found.get('placed', {}))}, took effect {took} of {len(settings)}, "
            f"applied {found.get('applied')}, reversed {found.get('reversed')}"
        )
        lines += [
            f"    {setting}: {each['patched']}, as published {each['published']}"
            for setting, each in settings.items()
            if not each["took_effect"]
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
