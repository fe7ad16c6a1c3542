"""Ask torch's profiler in a running program for a recording, over the socket at which it asks for orders.

A program that was started with `KINETO_USE_DAEMON` asks a daemon every five seconds whether to record. Here
dynotune is that daemon for the length of one recording. The socket is a Unix datagram socket: `dynolog` in
the folder `KINETO_IPC_SOCKET_DIR`, or an abstract name. A message is 8 bytes of length, 32 bytes of type, and
the body. The type `ctxt` announces a process, `req` asks for orders; the answer to `req` is the text of a
configuration, or nothing.

Source: libkineto/src/IpcFabricConfigClient.cpp and Config.cpp of https://github.com/pytorch/kineto, with
torch 2.13.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dynotune.running import process_files
from dynotune.running.process_files import PROC, ProcessFiles
from dynotune.schema.errors import CannotRunHere
from dynotune.schema.facts import Facts, Unknown, known

DAEMON, SOCKET_FOLDER, TRACE_FOLDER = (
    "KINETO_USE_DAEMON",
    "KINETO_IPC_SOCKET_DIR",
    "KINETO_ONDEMAND_TRACE_DIR",
)
TEARDOWN, LOG_NOTHING = "TEARDOWN_CUPTI", "5"
NAME = "dynolog"
NUM_STEPS = 6
"""A cycle of steps is found from three repetitions on."""
WITHOUT_STEPS_MS = 1000
"""Length of a recording of a program whose optimizers do not step."""
LIMIT_S = 120.0
POLL_S = 0.5
MOST_BYTES = 1 << 30

_HEAD = struct.Struct("<Q32s")
_REQUEST = struct.Struct("<iiq")
_RECORDS = 2
"""Bit in the kind of a request: the process is ready for a recording; it is not set while one goes on."""
_CREDENTIALS = struct.Struct("iii")
_OLDEST_TORCH, _OLDEST_CUDA = (2, 11), (12, 6)


class Door(NamedTuple):
    """Where a program asks for orders, as `socket.bind` takes it, and the folder below which it may write a
    trace."""

    address: str
    folder: Path


def prepared(env: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the variables that make a program ask for orders in a private folder, as an addition to `env`.

    A program that already has a daemon keeps it. Kineto's own messages are silenced, since a run prints what
    the command prints. CUPTI is taken down after a recording, so that launches are as fast as before it.
    """
    if DAEMON in env:
        return {}
    quiet_and_clean = {"KINETO_LOG_LEVEL": LOG_NOTHING, TEARDOWN: "1"}
    door = {DAEMON: "1", SOCKET_FOLDER: str(folder), TRACE_FOLDER: str(folder)}
    return {name: value for name, value in quiet_and_clean.items() if name not in env} | door


def door_of(process: ProcessFiles, facts: Facts, proc: Path = PROC) -> Door | Unknown:
    """Return the door of a program; Unknown, with what is needed, if it was not prepared at its start.

    A recording must leave the program as it was. With a GPU it leaves CUPTI behind, which makes each launch
    dearer, unless the program was started with TEARDOWN_CUPTI=1; and older versions crash when they take
    CUPTI down.
    """
    if process.variable(DAEMON) is None:
        return Unknown(f"the program has to be started with {DAEMON}=1, or by dynotune run --recordable")
    if not process.has_torch:
        return Unknown("the program has not loaded torch")
    for namespace in ("mnt", "net"):
        theirs, ours = (
            process_files.link(proc / str(pid) / "ns" / namespace) for pid in (process.pid, "self")
        )
        if theirs != ours:
            return Unknown("the program runs in a container; run dynotune in that container")
    if process.has_cuda and process.variable(TEARDOWN) != "1":
        return Unknown(
            f"the program has to be started with {TEARDOWN}=1 as well: without it, each launch is "
            "slower after a recording"
        )
    is_new = _at_least(facts, "torch.version", _OLDEST_TORCH) and _at_least(facts, "torch.cuda", _OLDEST_CUDA)
    if process.has_cuda and not is_new:
        return Unknown(
            "after a recording, torch before 2.11 or CUDA before 12.6 may crash when it takes CUPTI down"
        )
    folder = process.variable(SOCKET_FOLDER)
    address = str(Path(folder) / NAME) if folder else f"\0{NAME}\0"
    return Door(address, Path(process.variable(TRACE_FOLDER) or tempfile.gettempdir()))


@contextlib.contextmanager
def recording(
    processes: Sequence[ProcessFiles], door: Door, running: Callable[[str], None], limit_s: float = LIMIT_S
) -> Iterator[list[Path]]:
    """Have each process record some steps; yield the traces, which are removed after the block.

    Raises CannotRunHere: another daemon answers at the door, the folder cannot be used, the program ended, or
    there is no trace after `limit_s` seconds.
    """
    try:
        listener = _listener(door.address)
    except OSError as error:
        raise CannotRunHere(
            f"Cannot open the socket at which the program asks whether to record: {error.strerror or error}.",
            hint=(
                "If dynolog owns that socket, record with dyno gputrace. Otherwise stop the program "
                "that holds the socket."
            ),
        ) from error
    with contextlib.ExitStack() as stack:
        stack.callback(_close, listener, door.address)
        try:
            # The program writes with its own umask, so the folder is what keeps others out.
            folder = Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="dynotune-", dir=door.folder))
            )
        except OSError as error:
            raise CannotRunHere(
                f"Cannot make a folder for the trace below {door.folder}: {error.strerror}.",
                hint=f"The program writes traces only below {TRACE_FOLDER} or below /tmp.",
            ) from error
        session = _Session(listener, processes, folder)
        running("waiting until the program asks whether to record, which it does every 5 s")
        session.serve(time.monotonic() + limit_s, running)
        yield session.traces()


def configuration(trace: Path) -> str:
    """Return the order to record a few steps with stacks, or for a second if no optimizer steps."""
    lines = {
        "ACTIVITIES_LOG_FILE": trace,
        "PROFILE_START_ITERATION": 0,
        "PROFILE_START_ITERATION_ROUNDUP": 1,
        "ACTIVITIES_WARMUP_ITERATIONS": 1,
        "ACTIVITIES_ITERATIONS": NUM_STEPS,
        "ACTIVITIES_WARMUP_PERIOD_SECS": 1,
        "ACTIVITIES_DURATION_MSECS": WITHOUT_STEPS_MS,
        "PROFILE_WITH_STACK": "true",
    }
    return "".join(f"{name}={value}\n" for name, value in lines.items())


class _Session:
    """Answers the processes of one program until each has written its trace."""

    def __init__(self, listener: socket.socket, processes: Sequence[ProcessFiles], folder: Path) -> None:
        self._listener, self._folder = listener, folder
        self._processes = {process.pid: process for process in processes}
        self._ordered: set[int] = set()
        self._done: set[int] = set()

    def serve(self, until_s: float, running: Callable[[str], None]) -> None:
        while self._processes.keys() - self._done:
            if not self._still_runs():
                raise CannotRunHere(
                    "The program ended before its recording was written.",
                    hint="Start it by dynotune diagnose.",
                )
            if time.monotonic() > until_s:
                raise CannotRunHere(self._late(), hint="Try again while the program makes steps.")
            if not select.select([self._listener], [], [], POLL_S)[0]:
                continue
            with contextlib.suppress(OSError, struct.error, ValueError):
                self._answer()
            if self._ordered:
                running(f"{len(self._done)} of {len(self._processes)} recordings are written")

    def traces(self) -> list[Path]:
        return [self._trace(pid) for pid in self._processes]

    def _answer(self) -> None:
        """Answer one message. The kernel says who sent it; what the message says of that does not count."""
        data, ancillary, _, address = self._listener.recvmsg(1 << 16, socket.CMSG_SPACE(_CREDENTIALS.size))
        pid, kind, body = _sender(ancillary), *_message(data)
        if kind == b"ctxt":
            self._send(address, kind, struct.pack("<i", 1))
        elif kind == b"req":
            # Another program with the same socket is told that there is nothing to do.
            self._send(address, kind, self._order(pid, body) if pid in self._processes else b"")

    def _order(self, pid: int, request: bytes) -> bytes:
        """Return the order to record to a process that has none yet, else nothing, and note what it has
        written."""
        is_ready = bool(_REQUEST.unpack_from(request)[0] & _RECORDS)
        if is_ready and pid not in self._ordered:
            self._ordered.add(pid)
            return os.fsencode(configuration(self._folder / "trace.json"))
        if is_ready and self._trace(pid).is_file():
            self._done.add(pid)
        return b""

    def _send(self, address: str | bytes, kind: bytes, body: bytes) -> None:
        self._listener.sendto(_HEAD.pack(len(body), kind) + body, socket.MSG_DONTWAIT, address)

    def _trace(self, pid: int) -> Path:
        """Return where a process writes: Kineto puts its id, within its own namespace, before the name's
        end."""
        return self._folder / f"trace_{pid}.json"

    def _still_runs(self) -> bool:
        found = (process_files.stat(PROC / str(pid)) for pid in self._processes)
        starts = [
            int(one[1][process_files.START])
            for one in found
            if one is not None and one[1][0] not in (b"Z", b"X")
        ]
        return starts == [process.start_ticks for process in self._processes.values()]

    def _late(self) -> str:
        if len(self._ordered) < len(self._processes):
            return (
                "The program did not ask whether to record. Its torch may not support this, or "
                "another daemon may answer the program."
            )
        return (
            "The program accepted the request to record, but wrote no trace. Its main thread may not "
            "have reached its next step."
        )


def _listener(address: str) -> socket.socket:
    """Return a socket at the address. Raises OSError: another process answers there, or the folder cannot be
    used."""
    if not address.startswith("\0"):
        folder = Path(address).parent.stat()
        if folder.st_uid not in (os.geteuid(), 0):
            raise PermissionError(1, f"{Path(address).parent} belongs to another user")
        _remove_stale(address)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        listener.bind(address)
        if not address.startswith("\0"):
            Path(address).chmod(0o600)
    except OSError:
        listener.close()
        raise
    return listener


def _remove_stale(address: str) -> None:
    """Remove a socket that nobody answers any more, as of a dynotune that was killed."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
        try:
            probe.connect(address)
        except FileNotFoundError:
            return
        except ConnectionRefusedError:
            Path(address).unlink(missing_ok=True)
            return
    raise OSError(98, "another process answers there")


def _close(listener: socket.socket, address: str) -> None:
    listener.close()
    if not address.startswith("\0"):
        Path(address).unlink(missing_ok=True)


def _message(data: bytes) -> tuple[bytes, bytes]:
    """Return type and body of a message. Raises struct.error: it is too short."""
    size, kind = _HEAD.unpack_from(data)
    return kind.rstrip(b"\0"), data[_HEAD.size : _HEAD.size + size]


def _sender(ancillary: Sequence[tuple[int, int, bytes]]) -> int:
    """Return the id of the process that sent a message, 0 if it is not the same user's."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            pid, user, _ = _CREDENTIALS.unpack_from(data)
            return int(pid) if user == os.geteuid() else 0
    return 0


def _at_least(facts: Facts, name: str, oldest: tuple[int, int]) -> bool:
    numbers = tuple(map(int, re.findall(r"\d+", str(known(facts, name) or ""))[:2]))
    return len(numbers) == 2 and numbers >= oldest
