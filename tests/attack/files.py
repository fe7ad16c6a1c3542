"""The part of the attack in which programs work on files of a folder, in places of many kinds, in a view and
bare.

Both must see the same, the folder must stay as it was in bytes, modes and times, and nothing may be left.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import dynotune

from . import file_place
from .counts import Counts, drawn
from .file_programs import PRELUDE, PROGRAMS, VIEW_DIFFERS

SOURCE = str(Path(dynotune.__file__).parent.parent)
# What is needed for a place: to be root, and what a run there works in where the kernel has views.
PLACES = {
    "root": (True, "overlay"),
    "user": (False, "overlay"),
    "user's on another's files": (True, "none"),
    "shared by a group": (True, "none"),
    "without namespaces": (False, "none"),
    "overlayfs": (True, "overlay"),
    "tmpfs": (True, "overlay"),
    "read-only mount": (True, "none"),
    "small disk": (True, "overlay"),
    "full disk": (True, "overlay"),
}
# For it many places have no view.
LINKED = "hard links that were there"
FULL = ("small disk", "full disk")
CASES = [(place, program) for place in PLACES for program in PROGRAMS]
WHOLE = len(CASES)


def attack(number: int, seed: int, *, first: int = 0) -> Counts:
    """Try `number` pairs of a place and a program."""
    counts, python = Counts(), _python()
    for at in range(first, first + number):
        place, program = drawn(CASES, seed, at)
        name = f"{place}: {program}"
        if PLACES[place][0] and os.geteuid() != 0:
            counts.skipped[place] = "it takes root"
            continue
        if python is None and place != "root":
            counts.skipped[place] = "an ordinary user can read no Python or not dynotune"
            continue
        seen = _seen(place, program, python or sys.executable)
        if "cannot" in seen:
            counts.skipped[place] = seen["cannot"]
            continue
        if PLACES[place][1] == "overlay" and seen.get("sandbox") == "none" and program != LINKED:
            counts.skipped[f"{place}, in a view"] = _plain(seen["reason"])
        counts.tried[name] += 1
        if wrong := [*seen["wrong"], *_differences(place, program, seen)]:
            counts.failures.append(f"{name}, --seed {seed}, case {at}: {'; '.join(wrong)[:1500]}")
        else:
            counts.held[name] += 1
    return counts


def _python() -> str | None:
    """An interpreter that any user can run, and that can read dynotune."""
    code = (
        "import sys; sys.path.append(sys.argv[1]); import sqlite3, ctypes; from dynotune import launch; "
        "launch.start"
    )
    who = (
        {"user": file_place.USER, "group": file_place.GROUP, "extra_groups": []} if os.geteuid() == 0 else {}
    )
    for python in (sys.executable, "/usr/bin/python3"):
        try:
            words = [python, "-I", "-S", "-c", code, SOURCE]
            if subprocess.run(words, capture_output=True, cwd="/", **who).returncode == 0:
                return python
        except OSError:
            continue
    return None


def _seen(place: str, program: str, python: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="files-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        text = f"{PRELUDE}\n{PROGRAMS[program]}\nlook()\n"
        case = {"place": place, "program": text, "python": python, "source": SOURCE, "base": folder}
        words = [sys.executable, "-I", "-S", str(Path(file_place.__file__))]
        done = subprocess.run(words, input=json.dumps(case), capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        return {"wrong": [f"the case ended with {done.returncode}: {done.stderr[-800:]}"]}
    return dict(json.loads(done.stdout))


def _differences(place: str, program: str, seen: dict[str, Any]) -> list[str]:
    """In what the program saw otherwise than bare, but for what is documented."""
    if "launched" not in seen:
        return [str(seen.get("refused", ""))]
    if place in FULL and any(text in str(seen) for text in ("ENOSPC", "No space left")):
        # A view has the room of the run folder's disk: more or less than the folder's own, and for the output
        # too.
        return []
    (status, out, err), (bare_status, bare_out, bare_err) = seen["launched"], seen["bare"]
    found = [f"exit code {status}, bare {bare_status}: {err[-300:]}"] if status != bare_status else []
    if err != bare_err:
        found.append(f"stderr {err[-200:]!r}, bare {bare_err[-200:]!r}")
    launched, bare = (dict(map(json.loads, text.splitlines())) for text in (out, bare_out))
    for key in dict.fromkeys([*bare, *launched]):
        values, places = VIEW_DIFFERS.get((program, key), ((), ()))
        documented = seen["sandbox"] == "overlay" and place in places and launched.get(key) in values
        if documented:
            # What follows from it is not looked at.
            return found
        if launched.get(key) != bare.get(key):
            found.append(f"{key}: {launched.get(key)}, bare {bare.get(key)}")
    return found


def _plain(reason: str) -> str:
    return reason.replace(tempfile.gettempdir(), "$TMPDIR")
