"""`dynotune runs`: list the runs that are kept, and remove runs."""

from __future__ import annotations

import calendar
import contextlib
import sys
import time
from pathlib import Path
from typing import Annotated, Any, get_args

import msgspec
import typer

from dynotune.api import IN_A_FOLDER
from dynotune.cli import HELP_OF, answers, completion, run_names
from dynotune.cli.option_values import seconds_of
from dynotune.cli.options import Json, check_json, option
from dynotune.cli.run_options import RunDir, runs_folder
from dynotune.schema.errors import UsageError
from dynotune.schema.run import Objective

DOCUMENTS = (*IN_A_FOLDER, "precision.json", "run.json", "build.sh", "job.json")
SUBCOMMANDS = {"study": "tune", "comparison": "compare", "observation": "diagnose", "startup": "startup time"}
SUBCOMMANDS |= {"build": "plan", "job": "mcp"}  # plan.json is each agent's, too

LONGEST_ANSWER = 40
"""Signs of an answer in the list: `1.42× faster at the 99th percentile` has room."""

runs = typer.Typer(invoke_without_command=True, help=HELP_OF["runs"]["help"])


class KeptRuns(msgspec.Struct, frozen=True):
    """The document of `--json`, with the newest run first. `alive`: a process still uses the run."""

    schema: str = "dynotune.runs/1"
    runs: list[dict[str, Any]] = []


@runs.callback()
def list_(context: typer.Context, run_dir: RunDir = None, json: Json = None) -> None:
    if context.invoked_subcommand is not None:
        context.meta["base"] = runs_folder(run_dir)
        return
    check_json(json)
    from dynotune import launch

    folders = run_names.folders(runs_folder(run_dir))
    used = launch.in_use(folders)
    found = KeptRuns(runs=[_row(folder, alive=folder in used) for folder in folders])
    answers.show(_table, found, json)


def rm(
    context: typer.Context,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="RUN", help="Names of runs.", autocompletion=completion.runs)
    ] = None,
    older_than: Annotated[float | None, option("runs_older_than", parser=str, callback=seconds_of)] = None,
    all_: Annotated[bool, option("runs_all", "--all")] = False,
    yes: Annotated[bool, option("runs_yes", "--yes", "-y")] = False,
) -> None:
    from dynotune import launch
    from dynotune.text import words

    base = context.meta["base"]
    if sum(map(bool, (names, older_than, all_))) != 1:
        raise UsageError("Say which runs to remove.", hint="Give names, or --older-than 30d, or --all.")
    known = {folder.name: folder for folder in run_names.folders(base)}
    names = [run_names.found(name, base).name for name in names or ()]
    if unknown := set(names or ()) - set(known):
        raise UsageError(f"There is no run {min(unknown)} in {base}.", hint="dynotune runs lists them.")
    # No run is older than the epoch; earlier years have fewer digits, and would sort behind all names.
    before = (
        time.strftime("%Y%m%d-%H%M%S", time.gmtime(max(0.0, time.time() - older_than))) if older_than else "~"
    )
    folders = [folder for name, folder in known.items() if (name in names if names else name < before)]
    used = launch.in_use(folders)
    if used and names:
        raise UsageError(
            f"The run {min(used).name} is still in use.", hint="Wait for its end, or end it; then repeat."
        )
    folders = [folder for folder in folders if folder not in used]
    if folders and not yes:
        if sys.stdin is None or not sys.stdin.isatty():
            raise UsageError(
                "Nothing is removed without a question, and there is no terminal here to ask at.",
                hint="Add --yes.",
            )
        size = words.num_bytes(sum(map(launch.size_bytes, folders)))
        print(f"Remove {len(folders)} runs, {size}? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise typer.Exit(1)
    freed = sum(map(launch.remove_run, folders))
    left = f" {len(used)} in use were left." if used else ""
    print(f"Removed {len(folders)} runs, {words.num_bytes(freed)}.{left}")


def _row(folder: Path, *, alive: bool) -> dict[str, Any]:
    from dynotune import launch
    from dynotune.schema import document, untrusted

    file = next((folder / name for name in DOCUMENTS if (folder / name).is_file()), folder / "run.json")
    found: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):  # damaged: it is listed all the same
        found = document.parse(untrusted.read(file), dict[str, Any])
    run, verdict = found.get("run"), found.get("verdict")
    command = found.get("command") or (run.get("command") if isinstance(run, dict) else None)
    return {
        "name": folder.name,
        "path": str(folder),
        "subcommand": SUBCOMMANDS.get(file.stem, file.stem),
        "command": list(map(str, command)) if isinstance(command, list) else [],
        "verdict": verdict if isinstance(verdict, str) else "",
        "answer": _answer(found),
        "num_bytes": launch.size_bytes(folder),
        "alive": alive,
    }


def _answer(found: dict[str, Any]) -> str:
    """Write the answer of a document in a few words, in the terms of its objective; "" if it has none."""
    from dynotune.text import words

    confirmed = found.get("confirmed")
    proof = confirmed if isinstance(confirmed, dict) else found
    verdict, ratio = proof.get("verdict"), proof.get("speedup")
    if verdict in ("faster", "slower") and isinstance(ratio, float) and ratio > 0:
        return words.difference(ratio, _objective(proof) or _objective(found) or "throughput")
    if str(found.get("schema", "")).startswith("dynotune.study/"):
        return "nothing proved" if found.get("finished") else "not finished"
    return {"same": "no effect"}.get(str(verdict), verdict) if isinstance(verdict, str) else ""


def _objective(found: dict[str, Any]) -> Objective | None:
    run = found.get("run")
    objective = run.get("objective") if isinstance(run, dict) else None
    return next((known for known in get_args(Objective) if known == objective), None)


def _age(name: str) -> str:
    """Write how long ago a run began, by its name: `12m ago`."""
    try:
        began_s = calendar.timegm(time.strptime(name[:15], "%Y%m%d-%H%M%S"))
    except ValueError:
        return ""
    ago_s = max(0.0, time.time() - began_s)
    for unit, size_s in (("d", 86400), ("h", 3600), ("m", 60)):
        if ago_s >= size_s:
            return f"{ago_s / size_s:.0f}{unit} ago"
    return "just now"


def _table(found: KeptRuns) -> Any:
    from rich.console import Group
    from rich.text import Text

    from dynotune.report import layout, loudness
    from dynotune.text import words

    if not found.runs:
        return "No runs are kept."
    # The six signs at the end of its name are enough to name a run; a pipe gets the whole name.
    is_brief = loudness.is_brief()
    rows = layout.table(":number", ":whole", ":line" if is_brief else ":text", ":whole", ":number", ":whole")
    for one in found.runs:
        answer = "in use" if one["alive"] else words.plain(one["answer"], longest=LONGEST_ANSWER)
        name = _id(one) if is_brief else one["name"]
        words_of = [Path(word).name if not at else word for at, word in enumerate(one["command"])]
        command = layout.one_line(words.command(words_of if is_brief else one["command"]))
        command.no_wrap = is_brief
        size = words.num_bytes(one["num_bytes"])
        rows.add_row(_age(one["name"]), one["subcommand"], command, answer, size, Text(name, "dim"))
    total = words.num_bytes(sum(one["num_bytes"] for one in found.runs))
    num = len(found.runs)
    said = (
        f"{num} run{'' if num == 1 else 's'}, {total}. dynotune report {_id(found.runs[0])} shows one again."
    )
    return Group(rows, Text(said, style="dim"))


def _id(run: dict[str, Any]) -> str:
    return str(run["name"]).rpartition("-")[2]


runs.command(help=HELP_OF["runs rm"]["help"])(rm)
