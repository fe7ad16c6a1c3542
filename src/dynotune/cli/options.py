"""Options that several subcommands share, and where records go."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import get_args

from dynotune.schema.comparison import Objective
from dynotune.schema.errors import UsageError

OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
_UNITS_BYTES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "": 1}


def runs_folder(run_dir: Path | None) -> Path:
    """`--run-dir`, or the user's state folder."""
    if run_dir is not None:
        return run_dir.expanduser().absolute()
    from platformdirs import user_state_path

    return user_state_path("dynotune") / "runs"


def found_folder(resume: str, base: Path, file: str) -> Path:
    """The folder of `--resume ID`: below `base`, or wherever a path says.

    Args:
        file: that tells such folders from others, `comparison.json`.

    Raises:
        UsageError: there is none.
    """
    folder = Path(resume).absolute() if os.sep in resume else base / resume
    if not folder.is_dir():
        known = sorted(path.parent.name for path in base.glob(f"*/{file}"))[-3:]
        raise UsageError(
            f"There is no {file.removesuffix('.json')} {resume} in {base}.",
            hint=f"The last ones are: {', '.join(known)}." if known else "Was it made with another --run-dir?",
        )
    return folder


def seconds(text: str | None, option: str) -> float | None:
    """`90`, `90s`, `15m` or `1.5h` in seconds.

    Raises:
        UsageError: none of these.
    """
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    if match is None or float(match[1]) == 0:
        raise UsageError(f"{option} {text} is not a length of time.", hint=f"For example {option} 90s or {option} 15m.")
    return float(match[1]) * _UNITS_S[match[2]]


def objective_called(name: str) -> Objective:
    """`--objective NAME`.

    Raises:
        UsageError: there is none of that name.
    """
    for objective in OBJECTIVES:
        if objective == name:
            return objective
    raise UsageError(f"There is no objective {name}.", hint=f"--objective takes {', '.join(OBJECTIVES)}.")


def num_bytes(text: str | None, option: str) -> int | None:
    """`500M`, `2G` or `1.5GiB` (powers of 1024) or `2GB` (of 1000) in bytes.

    Raises:
        UsageError: none of these.
    """
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?b)?", text.strip().lower())
    if match is None or float(match[1]) == 0:
        raise UsageError(f"{option} {text} is not a size.", hint=f"For example {option} 500M or {option} 8G.")
    power = _UNITS_BYTES[match[2]]
    if match[3] == "b":
        power = 1000 ** ((power.bit_length() - 1) // 10)
    return int(float(match[1]) * power)


def environment() -> dict[str, str]:
    """The environment that dynotune was given, for the command to inherit.

    Not `os.environ`: where the locale is C, Python puts LC_CTYPE into its own (PEP 538).
    """
    try:
        entries = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        return dict(os.environ)
    found: dict[str, str] = {}
    for entry in entries:
        name, equals, value = entry.partition(b"=")
        if equals:
            found.setdefault(os.fsdecode(name), os.fsdecode(value))
    return found


def check_json(target: str | None) -> None:
    """Refuse now what `write_json` would refuse after hours of measuring.

    Raises:
        UsageError: `target` cannot be a file that is written.
    """
    if target is None or target == "-":
        return
    path = Path(target)
    if path.is_dir() or not path.absolute().parent.is_dir():
        why = "it is a folder" if path.is_dir() else f"there is no folder {path.absolute().parent}"
    elif not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        why = "permission denied"
    else:
        return
    raise UsageError(f"Cannot write {target}: {why}.", hint="Name another file with --json.")


def write_json(document: object, target: str) -> None:
    """Write `document` to the file `target`, or to standard output when that is `-`.

    Raises:
        UsageError: the file cannot be written.
    """
    import msgspec

    text = msgspec.json.format(msgspec.json.encode(document), indent=1).decode()
    if target == "-":
        print(text, flush=True)
        return
    try:
        Path(target).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"Cannot write {target}: {error.strerror}.", hint="Name another file with --json.") from error
