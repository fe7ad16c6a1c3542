"""Run subcommands for an agent, each as a job with its own process and folder; a job may outlive the server.

A job's folder holds `report.txt` (the report for a person), `progress.txt` (messages while the job runs), `answer.json`
and, if the job ended while its server was running, `exit_code`.
"""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from dynotune.schema import private
from dynotune.schema.errors import UsageError
from dynotune.text import words

LONGEST_REPORT = 6000
"""Largest number of characters of a report, some 1,500 tokens; the whole report is in the job's folder."""
LONGEST_LINE, LAST_LINES = 200, 4
WITHOUT_REPORT = ("explain", "knobs")
"""Subcommands that print their whole answer; with `--json` they print nothing."""
_VERDICT = ("verdict", "speedup", "ci", "unit", "reason")


@dataclass(frozen=True, slots=True)
class Job:
    """A subcommand that runs or ran for an agent. The job's id is the name of its folder."""

    folder: Path

    @property
    def id(self) -> str:
        return self.folder.name

    def is_running(self) -> bool:
        """Return whether the job's own process still runs. A job runs until its exit code is in its folder."""
        if self._text("exit_code") or not (noted := self._text("process").split()):
            return False
        try:
            return psutil.Process(int(noted[0])).create_time() == float(noted[1])
        except (psutil.Error, ValueError, IndexError):
            return False

    def so_far(self) -> str:
        """Return the last lines of the job's progress."""
        said = [line for line in self._text("progress.txt").splitlines() if line.strip()]
        return "\n".join(words.plain(line, longest=LONGEST_LINE) for line in said[-LAST_LINES:])

    def answer(self) -> dict[str, Any]:
        """Return the answer for the agent: a bounded text, with the paths of the complete files.

        Text from the user's program is quoted as data; control characters are written as escapes.
        """
        told: dict[str, Any] = {"job": self.id}
        if self.is_running():
            return told | {"state": "running", "so_far": self.so_far(), "next": f"Call job with id {self.id}."}
        code = self._text("exit_code")
        whole = self.folder / "answer.json"
        done = whole.is_file() or code == "0"
        report = self._text("report.txt") if done else self._text("progress.txt")[-LONGEST_REPORT:]
        lines = [words.plain(line.rstrip(), longest=LONGEST_LINE) for line in report.splitlines()]
        text = "\n".join(lines)
        told |= {"state": "done" if done else "failed", "exit_code": int(code) if code else None}
        if len(text) > LONGEST_REPORT:
            text = f"{text[:LONGEST_REPORT]}\n… the rest is in {self.folder / 'report.txt'}"
        told["report"] = text
        if whole.is_file():
            told |= {"json": str(whole), **_verdict(whole)}
        return told

    def stop(self) -> None:
        """Interrupt the job as Ctrl-C would; its measurements so far are kept."""
        if self.is_running():
            with contextlib.suppress(OSError, ValueError):
                os.killpg(int(self._text("process").split()[0]), signal.SIGINT)

    def _text(self, name: str) -> str:
        try:
            return (self.folder / name).read_text(encoding="utf-8", errors="backslashreplace").strip("\n")
        except OSError:
            return ""


def _verdict(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    found = document.get("confirmed") or document
    return {name: found[name] for name in _VERDICT if isinstance(found, dict) and found.get(name) is not None}


def base() -> Path:
    return private.state_folder() / "mcp"


def start(subcommand: Sequence[str], root: Path, folder: Path, command: Sequence[str] = ()) -> Job:
    """Start `dynotune SUBCOMMAND -- COMMAND` in `folder`, for a server of `root`.

    Raises:
        UsageError: if the job's folder cannot be made, or the process cannot be started.
    """
    job = Job(base() / f"{subcommand[0]}-{secrets.token_hex(4)}")
    written = [] if subcommand[0] in WITHOUT_REPORT else ["--json", str(job.folder / "answer.json")]
    # -P: what lies in the folder is no module of ours.
    ours = [sys.executable, "-P", "-m", "dynotune", *subcommand, *written]
    env = {**os.environ, "NO_COLOR": "1", "COLUMNS": "80"}
    try:
        job.folder.mkdir(parents=True, mode=0o700)
        (job.folder / "root").write_bytes(os.fsencode(root))
        with (job.folder / "report.txt").open("wb") as report, (job.folder / "progress.txt").open("wb") as progress:
            process = subprocess.Popen(
                [*ours, *(["--", *command] if command else [])],
                cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=report, stderr=progress, start_new_session=True,
            )  # fmt: skip
        (job.folder / "process").write_text(f"{process.pid} {psutil.Process(process.pid).create_time()!r}")
    except (OSError, psutil.Error) as error:
        raise UsageError(f"No job can be started: {error}.", hint="Look at the folder and its disk.") from error
    threading.Thread(target=_note_end, args=(process, job.folder), daemon=True).start()
    return job


def _note_end(process: subprocess.Popen[bytes], folder: Path) -> None:
    code = process.wait()
    with contextlib.suppress(OSError):
        (folder / "exit_code").write_text(str(code))


def find(id: str, root: Path) -> Job:
    """Return the job with this id that a server of this root started, including earlier servers.

    Raises:
        UsageError: if there is no such job.
    """
    known = {path.parent.name: path for path in base().glob("*/root")}
    if id not in known or known[id].read_bytes() != os.fsencode(root):
        raise UsageError(f"There is no job {words.plain(id, longest=60)} of this root.", hint="Start it anew.")
    return Job(base() / id)


def finished(job: Job, wait_s: float) -> bool:
    """Wait at most this many seconds for the job to end; return whether it has ended."""
    until_s = time.monotonic() + wait_s
    while job.is_running() and time.monotonic() < until_s:
        time.sleep(0.1)
    return not job.is_running()
