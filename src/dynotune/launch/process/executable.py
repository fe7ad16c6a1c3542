"""Find the command's executable as a shell does, and report clearly when no executable is found."""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynotune.launch.process import multirun, script
from dynotune.launch.process.run_folder import new_run_folder
from dynotune.schema.errors import CannotRunHere, DynotuneError, UsageError

if TYPE_CHECKING:
    from dynotune.schema.run import RunSpec
    from dynotune.schema.setting import Setting


def check_run(run: RunSpec, candidate: Iterable[Setting] = (), *, looks_for_script: bool = False) -> None:
    """Refuse a run that cannot start, before dynotune waits for another dynotune or measures anything.

    If a setting changes PATH, or the command lies in the run folder, only the run can show whether the
    command exists.

    Args:
        candidate: settings of the candidate in addition to the run's settings.
        looks_for_script: whether the script that the command gives to Python must be there. Another revision
            may have another.

    Raises:
        UsageError: the command or its script is not found, is a notebook, or is a multirun of Hydra.
        CannotRunHere: the folder for records cannot be made.
    """
    multirun.refuse_multirun(run.command, run.cwd)
    name = run.command[0] if run.command else ""
    if "{run_dir}" not in name and all(setting.knob != "env.PATH" for setting in (*run.settings, *candidate)):
        find_executable(name, env=run.env, cwd=run.cwd)
    was_there = run.base.exists()
    new_run_folder(run.base).rmdir()
    if not was_there:
        with contextlib.suppress(OSError):
            run.base.rmdir()
    if looks_for_script and all(setting.knob != "git.ref" for setting in (*run.settings, *candidate)):
        script.refuse_missing(run.command, run.cwd)


def find_executable(name: str, *, env: Mapping[str, str], cwd: Path) -> str:
    """Return the file that `name` starts: `name` itself if it has a slash, else the match on the PATH in
    `env`.

    The kernel passes this path to a script's interpreter, which shows it to the program (`sys.argv[0]`,
    `$0`). So a name with a slash is returned unchanged, relative to `cwd`.

    Raises UsageError: the name is not found (the message lists similar names) or is not executable.
    """
    if not name:
        raise UsageError(
            "The command is empty.", hint="Write it after --, as in: dynotune run -- python train.py"
        )
    if "/" in name:
        _check(cwd / name, name)
        return name
    folders = [cwd / folder for folder in env.get("PATH", os.defpath).split(os.pathsep)]
    found = shutil.which(name, path=os.pathsep.join(str(folder) for folder in folders))
    if found is not None:
        return found
    for folder in folders:
        if (folder / name).is_file():
            return _check(folder / name, name)
    if (cwd / name).is_file():
        raise UsageError(f"{name} is not on PATH.", hint=_how_to_start(f"./{name}", cwd / name))
    raise UsageError(f"Command not found: {name}.", hint=_near(name, folders))


def _check(path: Path, name: str) -> str:
    try:
        is_there = path.exists()
    except PermissionError as error:
        raise UsageError(
            f"Cannot look at {name}: {error.strerror}.", hint="Check who may enter it."
        ) from error
    if not is_there:
        raise UsageError(f"Command not found: {name} (in {path.parent}).", hint="Check the path.")
    if path.is_dir():
        raise UsageError(f"{name} is a folder.", hint="Name the program to start.")
    if not os.access(path, os.X_OK, effective_ids=True):
        raise UsageError(f"{name} is not executable.", hint=_how_to_start(name, path))
    return str(path)


def _how_to_start(name: str, path: Path) -> str:
    if path.suffix == ".py":
        return f"Start it with Python: python {name}"
    if path.suffix == script.NOTEBOOK:
        return script.how_to_start_a_notebook(name)
    return f"Write it as {name}, and make it executable: chmod +x {name}"


def _near(name: str, folders: list[Path]) -> str:
    there: set[str] = set()
    for folder in folders:
        try:
            there.update(os.listdir(folder))  # noqa: PTH208 - names alone, of thousands of files
        except OSError:
            continue
    near = difflib.get_close_matches(name, there, n=3)
    return f"Near names on PATH: {', '.join(near)}." if near else "Check the name and PATH."


def no_process(why: str) -> CannotRunHere:
    """Build the error for a machine that cannot start a process."""
    return CannotRunHere(
        f"Cannot start a process: {why}.",
        hint="No more processes are allowed, or no memory is left: see `ulimit -u`, `ulimit -v` and `free`.",
    )


def not_started(order: Mapping[str, Any], failure: Mapping[str, Any]) -> DynotuneError:
    """Build the error for a command that did not start, from the step that failed in the supervisor."""
    name, why = order["command"][0], os.strerror(failure["errno"]) if failure["errno"] else failure["why"]
    if failure["failed"] == "sandbox":
        return CannotRunHere(
            f"No copy-on-write view of {order['cwd']}: {failure['why']}.", hint="Try it with --no-sandbox."
        )
    if failure["failed"] == "fork":
        return no_process(why)
    if failure["failed"] == "hang":
        return CannotRunHere(
            f"{name} did not start in time.",
            hint=(
                f"Does {order['cwd']}, or {order['executable']}, lie on a network drive that does not answer?"
            ),
        )
    if failure["failed"] == "cwd":
        return UsageError(f"Cannot work in {order['cwd']}: {why}.", hint="Check the path.")
    if failure["failed"] == "exec" and failure["errno"] == errno.ENOENT:
        return UsageError(
            f"{name} cannot be started: the interpreter that its first line names does not exist.",
            hint=f"Look at the first line of {order['executable']}.",
        )
    if failure["failed"] == "exec" and failure["errno"] in (errno.EACCES, errno.E2BIG):
        return UsageError(
            f"{name} cannot be started: {why}.", hint="Check its permissions and the command's length."
        )
    return CannotRunHere(f"{name} cannot be started: {why}.")
