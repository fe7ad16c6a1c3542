"""Make private run folders, open the streams of a captured run, and read the end of its output."""

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from dynotune.launch.process import processes
from dynotune.launch.process.leases import MARK, size_bytes
from dynotune.schema import private, redaction, untrusted
from dynotune.schema.errors import CannotRunHere, UsageError, may_fail

STDOUT = "stdout"
STDERR = "stderr"
_TAIL_BYTES = 1 << 16
_ROOM_BYTES = 1 << 16
_SEARCHED_LINES = 500
_TRACEBACK = "Traceback (most recent call last)"
_ASIDE = ("Exception in thread", "Exception ignored")
# torchrun writes the first prefix before each line of a rank's traceback. The second says only that a rank
# had one.
_OF_RANK, _RANK_FAILED = re.compile(r"^\[rank\d+\]: ?"), "ChildFailedError"
_MOST_HELD = 128
"""A process that compares many settings makes some folders for each, and its own folder is the first of
all."""
_held: list[int] = []
# CSI and OSC sequences, other escapes and other control characters; a program's output is quoted without
# them.
_TERMINAL_CODES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b.|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)


def new_run_folder(base: Path) -> Path:
    """Make a folder below `base`, mode 0700, with a name that sorts by time (UTC); the state folder is
    private too.

    Raises CannotRunHere: the folder cannot be made or written (read-only, full, or owned by another user).
    """
    try:
        folder = _made(base)
        # The umask may have removed mode bits.
        folder.chmod(0o700)
        try:
            _prove_room(folder)
        except OSError:
            with contextlib.suppress(OSError):
                folder.rmdir()
            raise
    except OSError as error:
        raise _no_folder(base, error) from error
    hold(folder)
    return folder


def _made(base: Path, tries: int = 5) -> Path:
    """Make the folder; retry if another dynotune has removed `base`, after its test whether `base` can be
    created."""
    try:
        state = private.state_folder()
        if base.is_relative_to(state):
            private.folder(state, *base.relative_to(state).parts)
        else:
            private.make_missing(base)
        now_s = time.time()
        clock = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now_s))
        folder = base / f"{clock}-{int(now_s * 1000) % 1000:03d}-{secrets.token_hex(3)}"
        folder.mkdir(mode=0o700)
    except FileNotFoundError:
        if not tries:
            raise
        return _made(base, tries - 1)
    return folder


def fresh_folder(folder: Path) -> Path:
    """Make `folder` empty, mode 0700, so that files of an interrupted run are not taken for files of the next
    run.

    Raises CannotRunHere: the folder cannot be made or emptied.
    """
    try:
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise _no_folder(folder.parent, error) from error
    return folder


def has_room(folder: Path) -> bool:
    """Tell whether a few more pages can be written in the folder."""
    try:
        _prove_room(folder)
    except OSError:
        return False
    return True


def _prove_room(folder: Path) -> None:
    # Making a folder succeeds even on a full disk.
    room = folder / "room"
    try:
        room.write_bytes(bytes(_ROOM_BYTES))
    finally:
        room.unlink(missing_ok=True)


def _no_folder(base: Path, error: OSError) -> CannotRunHere:
    return CannotRunHere(
        f"Cannot make a run folder in {base}: {error.strerror}.",
        hint="Set XDG_STATE_HOME to a folder of your own."
        if error.errno == errno.EPERM
        else "Free some space there, or name another folder with --run-dir.",
    )


def last_lines(run_dir: Path, num: int) -> tuple[str, ...]:
    """Return the last lines that a captured run printed to stderr, or to stdout when stderr is empty.

    Terminal codes and secrets are removed. For a redrawn line, such as a progress bar, only the last text
    counts.
    """
    for name in (STDERR, STDOUT):
        lines = [shown for line in _tail(run_dir / name).split("\n") if (shown := _as_shown(line))]
        if lines:
            return tuple(map(redaction.redacted, lines[-num:])) if num > 0 else ()
    return ()


def error_line(run_dir: Path) -> str:
    """Return the output line of a captured run that says why the run failed; "" if the run printed nothing.

    Return the message of the program's last traceback. Threads and destructors that fail at the program's
    exit print later tracebacks, which count only if there is no other traceback. Without a traceback, return
    the last line.
    """
    lines = [_OF_RANK.sub("", line) for line in last_lines(run_dir, _SEARCHED_LINES)]
    own = aside = ""
    for before, (at, line) in zip(["", *lines], enumerate(lines), strict=False):
        if not line.lstrip().startswith(_TRACEBACK):
            continue
        message = next((later for later in lines[at + 1 :] if later[0].strip()), "")
        if before.lstrip().startswith(_ASIDE):
            aside = message
        elif _RANK_FAILED not in message:
            own = message
    return (own or aside or (lines[-1] if lines else "")).strip()


def _tail(path: Path) -> str:
    try:
        return untrusted.piece(path, -_TAIL_BYTES, _TAIL_BYTES, link=False).decode(errors="replace")
    except OSError:
        return ""


def _as_shown(line: str) -> str:
    drawn = [_TERMINAL_CODES.sub("", part).rstrip() for part in line.split("\r")]
    return next((part for part in reversed(drawn) if part), "")


def hold(folder: Path) -> None:
    """Mark the folder as in use for the life of this process, or until 128 later folders are marked."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        _held.append(descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    if len(_held) > _MOST_HELD:
        os.close(_held.pop(0))


def in_use(folders: Iterable[Path]) -> set[Path]:
    """Return the folders that a process has marked, or that a run with living processes uses."""
    marked: set[Path] = set()
    for process in processes.everyone():
        with contextlib.suppress(OSError):
            entries = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
            for name, _, value in (entry.partition(b"=") for entry in entries):
                if name == MARK.encode():
                    run = Path(os.path.realpath(os.fsdecode(value)))  # a run may know its folder by a link
                    marked.update((run, *run.parents))
    return {folder for folder in folders if Path(os.path.realpath(folder)) in marked or _is_held(folder)}


def _is_held(folder: Path) -> bool:
    """Tell whether a process has marked the folder; true where locks do not work, as on some network file
    systems."""
    descriptor = None
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return not isinstance(error, FileNotFoundError)
    finally:
        if descriptor is not None:
            os.close(descriptor)
    return False


def remove_run(folder: Path) -> int:
    """Remove a run folder without following links; return the bytes freed. Raises DynotuneError: in use, or
    denied."""
    if in_use([folder]):
        raise UsageError(
            f"The run {folder.name} is still in use.", hint="Wait for its end, or end it; then repeat."
        )
    num_bytes = size_bytes(folder)
    with may_fail(f"remove {folder}", "Check who owns the files in it."):
        shutil.rmtree(folder)
    return num_bytes


def opened_input() -> BinaryIO:
    """Reopen the file that is dynotune's standard input, from its beginning; without a file, open the null
    device.

    A pipe can be read only once, and a reader that waits for its end may wait forever.
    """
    try:
        return Path("/proc/self/fd/0" if _input_is(stat.S_ISREG) else os.devnull).open("rb")
    except OSError:  # the file may not be reopened
        return Path(os.devnull).open("rb")


@contextlib.contextmanager
def captured(run_dir: Path | None) -> Iterator[dict[str, Any]]:
    """Yield streams for subprocess: the opened input, and output files in the run folder, or dynotune's own
    streams.

    Raises CannotRunHere: the folder cannot be written.
    """
    if run_dir is None:
        yield {}
        return
    with contextlib.ExitStack() as stack:
        with may_fail(f"write in the run folder {run_dir}"):
            stdout, stderr = (stack.enter_context((run_dir / name).open("ab")) for name in (STDOUT, STDERR))
        yield {"stdin": stack.enter_context(opened_input()), "stdout": stdout, "stderr": stderr}


def input_is_pipe() -> bool:
    """Tell whether dynotune's standard input is a pipe, which captured runs do not get."""
    return _input_is(stat.S_ISFIFO)


def _input_is(kind: Callable[[int], bool]) -> bool:
    try:
        return kind(os.fstat(0).st_mode)
    except OSError:  # standard input is closed
        return False
