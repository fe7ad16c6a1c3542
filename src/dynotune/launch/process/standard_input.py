"""What a captured run reads: the file that dynotune itself was given, from its beginning, or nothing.

A pipe can be read once, and whoever waits for its end may wait for ever.
"""

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from dynotune.launch.process.run_folder import STDERR, STDOUT
from dynotune.schema.errors import may_fail


def opened() -> BinaryIO:
    """Return the file that is our standard input, opened anew; else the null device."""
    try:
        return Path("/proc/self/fd/0" if _is(stat.S_ISREG) else os.devnull).open("rb")
    except OSError:  # it may not be opened again
        return Path(os.devnull).open("rb")


@contextlib.contextmanager
def captured(run_dir: Path | None) -> Iterator[dict[str, Any]]:
    """Yield streams for subprocess: this input, output into files of the run folder; our own ones without a folder.

    Raises CannotRunHere: the folder cannot be written to.
    """
    if run_dir is None:
        yield {}
        return
    with contextlib.ExitStack() as stack:
        with may_fail(f"write in the run folder {run_dir}"):
            stdout, stderr = (stack.enter_context((run_dir / name).open("ab")) for name in (STDOUT, STDERR))
        yield {"stdin": stack.enter_context(opened()), "stdout": stdout, "stderr": stderr}


def is_pipe() -> bool:
    """Tell whether somebody pipes something to us, which no captured run gets."""
    return _is(stat.S_ISFIFO)


def _is(kind: Callable[[int], bool]) -> bool:
    try:
        return kind(os.fstat(0).st_mode)
    except OSError:  # it is closed
        return False
