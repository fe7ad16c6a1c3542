"""Order tasks of a live run by task files, counted in a memory page that the processes of the run have
mapped."""

import fcntl
import mmap
import os
import struct
from pathlib import Path

from dynotune.schema import document
from dynotune.schema.errors import CannotRunHere, may_fail
from dynotune.schema.task import Task, TaskFile

PAGE_FILE = "tasks.page"
_PAGE_BYTES = 4096
# Layout that the agent reads: magic, version, zero, number of task files, number of requests for results.
_HEAD = struct.Struct("<8sHHII")
_MAGIC, _VERSION = b"DYNOTASK", 1


class TaskPage:
    """The memory page and the task files by which dynotune orders tasks of one live run from the run's
    agents. Only one dynotune process at a time can hold the page.

    Raises CannotRunHere: another dynotune process holds the page, or the folder cannot be written to.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        path = folder / PAGE_FILE
        with may_fail(f"write {path}", "Free some space there."):
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.posix_fallocate(self._descriptor, 0, _PAGE_BYTES)
                self._page = mmap.mmap(self._descriptor, _PAGE_BYTES)
            except OSError as error:
                os.close(self._descriptor)
                if not isinstance(error, BlockingIOError):
                    raise
                raise CannotRunHere(
                    f"Another dynotune process controls the live run in {folder}.",
                    hint="Wait until it has ended, or start a run of your own.",
                ) from error
        self._num_tasks = self._num_repeats = 0
        self._write()

    def order(self, task: Task) -> int:
        """Order `task`; return its number, which identifies its result.

        Raises CannotRunHere: the task file cannot be written; the task is then not ordered.
        """
        document.write(
            self._folder / f"task-{self._num_tasks + 1:03d}.json", TaskFile(task=task), to_agent=True
        )
        self._num_tasks += 1
        self._write()
        return self._num_tasks

    def ask_again(self) -> None:
        """Ask the agent to write the result of the last finished task once more."""
        self._num_repeats += 1
        self._write()

    def close(self) -> None:
        self._page.close()
        os.close(self._descriptor)

    def _write(self) -> None:
        _HEAD.pack_into(self._page, 0, _MAGIC, _VERSION, 0, self._num_tasks, self._num_repeats)
