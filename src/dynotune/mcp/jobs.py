"""Run subcommands for an agent, each as a job with its own process and run folder; a job may outlive the
server.

A job's folder lies among the runs, so `dynotune runs` lists and removes it. The folder holds `job.json` (what
runs, and for which root), `report.txt` (the report for a person), `progress.txt` (messages while the job
runs), `answer.json` and, if the job ended while its server was running, `exit_code`.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dynotune.launch import new_run_folder
from dynotune.launch.process import processes
from dynotune.schema import document, private, redaction, untrusted
from dynotune.schema.errors import CannotRunHere, RecordError, UsageError
from dynotune.text import quoting

LONGEST_REPORT = 6000
"""Largest number of characters of a report, some 1,500 tokens; the whole report is in the job's folder."""
LAST_LINES = 4
MOST_LISTED = 20
LONGEST_FIELD = 1000
WITHOUT_REPORT = ("explain", "knobs")
"""Subcommands that print their whole answer; with `--json` they print nothing."""
LARGEST_PIECE_BYTES, LARGEST_JSON_BYTES, LARGEST_NOTE_BYTES = 1 << 17, 1 << 26, 1 << 20
SAVING_S, KILL_AFTER_S = 60.0, 30.0
"""Time that a job gets beyond its limit, to save what it measured, and after an interrupt until it is
killed."""
FILE = "job.json"
_unfinished: set[Path] = set()
"""Folders of the jobs that this server started, and whose exit codes are not written yet."""
_ID = re.compile(r"[0-9a-f-]{1,64}")


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """Work of a job: the subcommand's words, the user's command, and the process that runs them.

    `root_digest`: of the root of the server that started the job; the root itself may look like a secret.
    """

    schema: str = "dynotune.job/1"
    root_digest: str
    subcommand: list[str]
    command: list[str]
    pid: int
    started_s: float


class _Verdict(msgspec.Struct):
    """The fields of a comparison that an agent gets as values; a diagnosis has a sentence as its verdict, and
    a plan the values that are proved and refuted."""

    verdict: str | None = None
    speedup: float | None = None
    ci: tuple[float, float] | None = None
    unit: str | None = None
    reason: str | None = None
    end: str | None = None
    largest: int | None = None
    refuted: int | None = None


class _Answer(_Verdict):
    """The same of a study, whose proof is a comparison of its own."""

    confirmed: _Verdict | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """A subcommand that runs or ran for an agent. The job's id is the name of its folder."""

    folder: Path

    @property
    def id(self) -> str:
        return self.folder.name

    def note(self) -> Note | None:
        try:
            return document.read(self.folder / FILE, Note)
        except RecordError:
            return None

    def is_running(self) -> bool:
        """Return whether the job's own process still runs; in its own server, until its exit code is in its
        folder."""
        return self.folder in _unfinished or (not self._lines("exit_code") and self._process() is not None)

    def so_far(self) -> str:
        """Return the last lines of the job's progress."""
        said = [line for line in self._lines("progress.txt") if line.strip()]
        return quoting.passage(said[-LAST_LINES:], most=LONGEST_REPORT)

    def answer(self) -> dict[str, Any]:
        """Return the answer for the agent: a bounded text, with the paths of the complete files.

        Text from the user's program is quoted as data; control characters are written as escapes.
        """
        told: dict[str, Any] = {"job": self.id}
        if self.is_running():
            return told | {
                "state": "running",
                "so_far": self.so_far(),
                "next": f"Call job with id {self.id}.",
            }
        code = next(iter(self._lines("exit_code")), "")
        whole = self.folder / "answer.json"
        done = untrusted.is_ordinary(whole) or code == "0"
        report = "report.txt" if done else "progress.txt"
        told |= {"state": "done" if done else "failed", "exit_code": int(code) if code else None}
        lines = self._lines(report)
        told["report"] = quoting.passage(lines, most=LONGEST_REPORT)
        if told["report"] != quoting.passage(lines, most=sys.maxsize):
            told["whole_report"] = str(self.folder / report)
        if untrusted.is_ordinary(whole):
            told |= {"json": str(whole), **_verdict(whole)}
        return told

    def row(self) -> dict[str, Any]:
        """Return the job's line in a list of jobs."""
        note = self.note()
        words = [] if note is None else [*note.subcommand, *(["--", *note.command] if note.command else [])]
        started_s = 0.0 if note is None else note.started_s
        return {
            "job": self.id,
            "state": "running" if self.is_running() else "ended",
            "what": quoting.plain(redaction.redacted(quoting.command(words)), longest=quoting.LONGEST_LINE),
            "started_s_ago": round(max(0.0, time.time() - started_s)),
        }

    def stop(self, number: int = signal.SIGINT) -> None:
        """Interrupt the job as Ctrl-C would; its measurements so far are kept."""
        if (process := self._process()) is not None:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, number)

    def _process(self) -> processes.Process | None:
        """Return the job's own process; None if the process has ended, or cannot be proved to be the job's.

        The proof: this folder is in the process's environment, and the process leads its own group and
        session.
        """
        note = self.note()
        found = None if note is None else processes.read(note.pid)
        is_ours = (
            found is not None
            and found.state not in "ZX"
            and found.session == found.pid
            and processes.environment_holds(found.pid, b"DYNOTUNE_JOB=" + os.fsencode(self.folder))
        )
        return found if is_ours else None

    def _lines(self, name: str) -> list[str]:
        """Return the lines of a file; of a large file the first and the last, without lines that a cut
        halved."""
        try:
            begin = untrusted.piece(self.folder / name, 0, 2 * LARGEST_PIECE_BYTES, link=False)
            if len(begin) == 2 * LARGEST_PIECE_BYTES:
                end = untrusted.piece(
                    self.folder / name, -LARGEST_PIECE_BYTES, LARGEST_PIECE_BYTES, link=False
                )
                begin = begin[:LARGEST_PIECE_BYTES].rpartition(b"\n")[0] + b"\n" + end.partition(b"\n")[2]
        except OSError:
            return []
        return begin.decode(errors="backslashreplace").strip("\n").splitlines()


def _verdict(path: Path) -> dict[str, Any]:
    try:
        found = document.parse(untrusted.read(path, LARGEST_JSON_BYTES, link=False), _Answer)
    except (OSError, ValueError):
        return {}
    shown = found.confirmed or found
    fields = {name: getattr(shown, name) for name in _Verdict.__struct_fields__}
    plain = {name: quoting.plain(text, longest=LONGEST_FIELD) if isinstance(text, str) else text
             for name, text in fields.items()}  # fmt: skip
    return {name: value for name, value in plain.items() if value is not None}


def base() -> Path:
    return private.state_folder() / "runs"


def start(
    subcommand: Sequence[str], root: Path, folder: Path, command: Sequence[str] = (), *, longest_s: float
) -> Job:
    """Start `dynotune SUBCOMMAND -- COMMAND` in `folder`, for a server of `root`.

    The server interrupts the job when `longest_s` seconds have passed.

    Raises:
        UsageError: if the job's folder cannot be made, or the process cannot be started.
    """
    job = None
    try:
        job = Job(new_run_folder(base()))
        written = [] if subcommand[0] in WITHOUT_REPORT else ["--json", str(job.folder / "answer.json")]
        # -P: do not import the folder's files as modules.
        ours = [sys.executable, "-P", "-m", "dynotune", *subcommand, *written]
        process = _started([*ours, *(["--", *command] if command else [])], job.folder, folder)
        note = Note(
            root_digest=_digest(root),
            subcommand=list(subcommand),
            command=list(command),
            pid=process.pid,
            started_s=time.time(),
        )
        document.write(job.folder / FILE, note)
    except (OSError, ValueError, CannotRunHere) as error:
        if job is not None:
            shutil.rmtree(job.folder, ignore_errors=True)
        raise UsageError(
            f"No job can be started: {error}.", hint="Look at the folder and its disk."
        ) from error
    _unfinished.add(job.folder)
    threading.Thread(target=_note_end, args=(process, job, longest_s), daemon=True).start()
    return job


def _started(words: list[str], kept: Path, folder: Path) -> subprocess.Popen[bytes]:
    """Start the process of a job in `folder`. The process holds its job's folder `kept`, so that nobody
    removes it."""
    env = {**os.environ, "NO_COLOR": "1", "COLUMNS": "80", "DYNOTUNE_JOB": str(kept)}
    held = os.open(kept, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(held, fcntl.LOCK_SH)
        with (kept / "report.txt").open("wb") as report, (kept / "progress.txt").open("wb") as progress:
            return subprocess.Popen(
                words, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=report, stderr=progress,
                start_new_session=True, pass_fds=[held],
            )  # fmt: skip
    finally:
        os.close(held)


def _note_end(process: subprocess.Popen[bytes], job: Job, longest_s: float) -> None:
    """Wait for the job's end, and write its exit code; interrupt, and then kill, a job that takes too
    long."""
    limits = ((longest_s + SAVING_S, signal.SIGINT), (KILL_AFTER_S, signal.SIGKILL))
    for limit_s, number in limits:
        try:
            process.wait(limit_s)
            break
        except subprocess.TimeoutExpired:
            job.stop(number)
    code = process.wait()
    with contextlib.suppress(OSError):
        (job.folder / "exit_code").write_text(str(code))
    _unfinished.discard(job.folder)


def of(root: Path) -> list[Job]:
    """Return the jobs that servers of this root started, the newest first."""
    found = [Job(path.parent) for path in base().glob(f"*/{FILE}")]
    return sorted((job for job in found if _is_of(job, root)), key=lambda job: job.id, reverse=True)


def find(id: str, root: Path) -> Job:
    """Return the job with this id that a server of this root started, including earlier servers.

    Raises:
        UsageError: if there is no such job.
    """
    job = Job(base() / id) if _ID.fullmatch(id) else None
    if job is None or not _is_of(job, root):
        raise UsageError(
            f"There is no job {quoting.plain(id, longest=60)} of this root.", hint="Start it anew."
        )
    return job


def _is_of(job: Job, root: Path) -> bool:
    note = job.note()
    return note is not None and note.root_digest == _digest(root)


def _digest(root: Path) -> str:
    return hashlib.sha256(os.fsencode(root)).hexdigest()
