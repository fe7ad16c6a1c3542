"""Signal the processes of a run that this process started: ask them for their stacks, or kill them.

A record names processes and signals, and anyone may have written it. So no signal goes to a process unless
this process started it, which its environment and its start time prove. A watcher that joined the run of
another process has started none, and signals none.
"""

import contextlib
import re
import signal
import time
from pathlib import Path

from dynotune.launch.process import processes
from dynotune.schema import untrusted

ANSWER_S = 0.2
LARGEST_ANSWER_BYTES = 1 << 20
NOT_THE_USERS = ("-packages/", "/lib/python", "/dynotune/agent/", "<frozen")


def stacks(pid: int, number: int, folder: Path) -> list[str]:
    """Return the position of each Python thread, requested by the signal that the process announced and still
    catches.

    Each thread is described by its innermost call and its innermost line of user code; the main thread comes
    first. The list is empty if the process is not proved to be of the run in `folder`, or if the signal is
    none that the agent
    chooses: a real-time signal.
    """
    process = processes.started_here(pid, folder)
    if process is None or not signal.SIGRTMIN < number < signal.SIGRTMAX or not _catches(pid, number):
        return []
    path = folder / f"stacks-{pid}.txt"
    with contextlib.suppress(OSError):
        begin = path.lstat().st_size
        with untrusted.opened(path, link=False):  # nobody is asked whose answer could not be read
            processes.send(process, number)
        time.sleep(ANSWER_S)
        answer = untrusted.piece(path, begin, LARGEST_ANSWER_BYTES, link=False)
        threads = answer.decode(errors="replace").split("hread 0x")
        return [_places(text) for text in reversed(threads[1:])]
    return []


def kill(pids: list[int], folder: Path) -> None:
    """Kill those of the processes that are proved to be of the run in `folder`, and all processes below
    them."""
    for pid in pids:
        if (process := processes.started_here(pid, folder)) is not None:
            for below in processes.descendants(pid):
                processes.send(below, signal.SIGKILL)
            processes.send(process, signal.SIGKILL)


def _catches(pid: int, number: int) -> bool:
    with contextlib.suppress(OSError, StopIteration):
        status = Path(f"/proc/{pid}/status").read_text().splitlines()
        caught = next(int(line.split()[1], 16) for line in status if line.startswith("SigCgt"))
        return bool(caught >> (number - 1) & 1)
    return False


def _places(text: str) -> str:
    calls = re.findall(r'File "(.+)", line (\d+) in (.+)', text)
    users = [call for call in calls if not any(part in call[0] for part in NOT_THE_USERS)]
    shown = dict.fromkeys([*calls[:1], *users[:1]])
    return " in ".join(f"{Path(file).name}({line}): {name}" for file, line, name in shown)
