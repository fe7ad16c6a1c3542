"""Find the Python that a command will start from the command alone: by PATH, shebang and a few known
launchers."""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dynotune.schema import untrusted
from dynotune.schema.errors import UsageError
from dynotune.schema.facts import Unknown, needed, or_unknown
from dynotune.text import words

PYTHON = re.compile(r"(python|pypy)(\d+(\.\d+)*t?)?")
SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "fish", "ash"})

# Programs that run another program, which is one of their arguments.
WRAPPERS = frozenset(
    {"env", "nohup", "setsid", "time", "nice", "ionice", "chrt", "taskset", "numactl", "stdbuf", "timeout"}
)

# Tools that choose or create the environment themselves.
ENVIRONMENT_TOOLS = frozenset(
    {
        "uvx",
        "pipx",
        "poetry",
        "pdm",
        "hatch",
        "conda",
        "mamba",
        "micromamba",
        "pixi",
        "rye",
        "pipenv",
        "nox",
        "tox",
    }
)

# Options with which `uv run` does not use the project's `.venv`.
UV_ELSEWHERE = frozenset(
    {
        "--with",
        "--with-editable",
        "--with-requirements",
        "--isolated",
        "--python",
        "-p",
        "--no-project",
        "--active",
    }
    | {"--project", "--directory", "--script", "-s", "--package", "--all-packages"}
)

# pip, uv and distlib write this into a script if its interpreter's path is too long for a shebang.
LONG_SHEBANG = re.compile(r"""^'''exec' (?P<python>"[^"]+"|'[^']+'|\S+) "\$0" "\$@"$""")

MAX_INDIRECTIONS = 8
LARGEST_SCRIPT_BYTES = 1 << 24

MARK = "dynotune-facts:"
"""Printed before the JSON of an interpreter's answer, because a user's sitecustomize may print too."""


def interpreter(
    command: Sequence[str], env: Mapping[str, str], cwd: str | os.PathLike[str] | None = None
) -> str | Unknown:
    """Return the path of the Python that `command` will run in; Unknown if only a run would show the path.

    Supported are `python …`, scripts with a shebang (`torchrun`, `accelerate`, `yolo`), `uv run …` in a
    project whose `.venv` exists, and wrappers such as `nice` and `numactl`. A shell command line is not
    parsed.
    """
    return _resolve(list(command), env, Path(cwd or "").absolute(), MAX_INDIRECTIONS)


def interpreter_asked(
    python: str | None, command: Sequence[str] | None, env: Mapping[str, str], cwd: Path | None = None
) -> str | Unknown:
    """Return the interpreter `python`, else the command's interpreter, else the Python that the shell would
    start.

    Raises UsageError: `python` names no program.
    """
    if python is not None:
        found = interpreter([python], env, cwd)
        if not isinstance(found, str):
            raise UsageError(
                f"--python {python} cannot be used: {found.reason}.", hint="Name an interpreter."
            )
        return found
    if command:
        return interpreter(command, env, cwd)
    for name in ("python", "python3"):
        found = interpreter([name], env, cwd)
        if isinstance(found, str):
            return found
    return sys.executable


def program(
    command: Sequence[str], env: Mapping[str, str], cwd: str | os.PathLike[str] | None = None
) -> Path | None:
    """Return the file that `command` starts, behind wrappers such as `nice`; None if it is not found."""
    place = Path(cwd or "").absolute()
    left = list(command)
    while left:
        found = _which(left[0], env, place)
        if found is None or found.name not in WRAPPERS:
            return found
        left = left[_behind(left, env, place) :]
    return None


def _behind(command: list[str], env: Mapping[str, str], cwd: Path) -> int:
    """Return the position of the first argument that may be a program, after options and their values; else
    the end."""
    places = (
        at for at, word in enumerate(command) if at and not word.startswith("-") and _which(word, env, cwd)
    )
    return next(places, len(command))


def _resolve(command: list[str], env: Mapping[str, str], cwd: Path, left: int) -> str | Unknown:
    if not command:
        return Unknown("the command is empty")
    if not left:
        return Unknown("the command starts a chain of too many programs")
    program = _which(command[0], env, cwd)
    if program is None:
        return Unknown(f"{command[0]} is not found")
    name = program.name
    if PYTHON.fullmatch(name):
        return str(program)
    if name in SHELLS:
        return Unknown(f"{name} decides which Python runs")
    if name in WRAPPERS:
        if name == "env" and any(argument.startswith("PATH=") for argument in command[1:]):
            return Unknown("env changes PATH for the program it starts")
        rest = command[_behind(command, env, cwd) :]
        return _resolve(rest, env, cwd, left - 1) if rest else Unknown(f"no program is found behind {name}")
    if name == "uv":
        return _uv(command[1:], env, cwd)
    if name in ENVIRONMENT_TOOLS:
        return Unknown(f"{name} chooses the environment itself")
    if name in ("torchrun", "accelerate") and {"--no-python", "--no_python"} & set(command):
        return Unknown(f"{name} may start a program other than Python")
    return _by_shebang(program, env, cwd, left)


def _which(name: str, env: Mapping[str, str], cwd: Path) -> Path | None:
    if "/" in name:
        path = cwd / name
        return path if path.is_file() and os.access(path, os.X_OK) else None
    # A relative entry of PATH refers to the command's working directory, not to dynotune's.
    search = [str(cwd / entry) for entry in env.get("PATH", os.defpath).split(os.pathsep)]
    found = shutil.which(name, path=os.pathsep.join(search))
    return Path(found) if found else None


def _by_shebang(program: Path, env: Mapping[str, str], cwd: Path, left: int) -> str | Unknown:
    try:
        head = untrusted.piece(program, 0, 4096)
    except OSError as error:
        return Unknown(f"{program} cannot be read: {error.strerror}")
    if not head.startswith(b"#!"):
        return Unknown(f"{program.name} is not a Python script")
    lines = head.decode(errors="replace").splitlines()
    try:
        arguments = shlex.split(lines[0][2:])
        if arguments and Path(arguments[0]).name in SHELLS:
            long_shebang = LONG_SHEBANG.match(lines[1]) if len(lines) > 1 else None
            arguments = shlex.split(long_shebang["python"]) if long_shebang else arguments
    except ValueError as error:
        return Unknown(f"the first line of {program} cannot be read: {error}")
    if arguments and Path(arguments[0]).name == "env":
        arguments = [word for word in arguments[1:] if word not in ("-S", "--split-string")]
        arguments = arguments[next((at for at, word in enumerate(arguments) if "=" not in word), 0) :]
    return _resolve(arguments, env, cwd, left - 1)


def _uv(arguments: list[str], env: Mapping[str, str], cwd: Path) -> str | Unknown:
    if not arguments or arguments[0] != "run":
        return Unknown("uv chooses the environment itself")
    rest = arguments[1:]
    script = next((word for word in rest if not word.startswith("-")), None)
    options = rest[: rest.index(script)] if script is not None else rest
    elsewhere = sorted({option.partition("=")[0] for option in options} & UV_ELSEWHERE)
    if elsewhere:
        return Unknown(f"uv run {elsewhere[0]} chooses the environment itself")
    if script is not None and _has_inline_metadata(cwd / script):
        return Unknown(f"{script} names its own requirements, for which uv makes an environment")
    for folder in (cwd, *cwd.parents):
        python = folder / env.get("UV_PROJECT_ENVIRONMENT", ".venv") / "bin" / "python"
        if (folder / "pyproject.toml").is_file() or python.is_file():
            if python.is_file():
                return str(python)
            break
    return Unknown("uv has not made the environment of this project yet")


def _has_inline_metadata(script: Path) -> bool:
    try:
        text = untrusted.read(script, LARGEST_SCRIPT_BYTES).decode(errors="replace")
        return re.search(r"^# /// script\s*$", text, re.MULTILINE) is not None
    except OSError:
        return False


@or_unknown()
def answer(
    python: str | Unknown,
    question: str,
    cwd: str | os.PathLike[str] | None,
    env: Mapping[str, str] | None,
    timeout_s: float,
    late: str = "did not answer",
) -> Any:
    """Run `question` in an interpreter, and return the JSON that it prints after `MARK`."""
    late = f"{python} {late} within {timeout_s:g} s"
    exit_code, stdout, stderr = needed(run_python(python, ["-c", question], cwd, env, timeout_s, late))
    lines = stdout.decode(errors="replace").splitlines()
    marked = [line.removeprefix(MARK) for line in lines if line.startswith(MARK)]
    if exit_code != 0 or not marked:
        last = (stderr.decode(errors="replace").strip().splitlines() or ["it printed nothing"])[-1]
        return Unknown(f"{python} did not answer; it ended {words.ending(exit_code)}: {last}")
    return json.loads(marked[-1])


def run_python(
    python: str | Unknown,
    words: Sequence[str],
    cwd: str | os.PathLike[str] | None,
    env: Mapping[str, str] | None,
    timeout_s: float,
    late: str,
) -> tuple[int, bytes, bytes] | Unknown:
    """Run an interpreter to its end, in its own session.

    Returns:
        Exit code, standard output and standard error; Unknown if it cannot be started, or `late` if it takes
        too long.
    """
    if isinstance(python, Unknown):
        return python
    try:
        child = subprocess.Popen(
            [python, *words],
            cwd=cwd,
            env={**(os.environ if env is None else env), "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        return Unknown(f"{python} cannot be started: {error.strerror}")
    with child:
        try:
            stdout, stderr = child.communicate(timeout=timeout_s)
        except BaseException as error:
            # Kill the child's whole process group: grandchildren hold the child's pipes open, and the
            # terminal's Ctrl-C does not reach the child's own session.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            return Unknown(late)
    return child.returncode, stdout, stderr
