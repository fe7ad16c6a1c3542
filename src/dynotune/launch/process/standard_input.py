"""Give a captured run the file that is dynotune's standard input, read from the beginning, or else an empty input.

A pipe can be read only once, and a reader that waits for its end may wait forever.
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
    """Reopen the file that is dynotune's standard input; without a file, open the null device."""
    try:
        return Path("/proc/self/fd/0" if _is(stat.S_ISREG) else os.devnull).open("rb")
    except OSError:  # the file may not be reopened
        return Path(os.devnull).open("rb")


@contextlib.contextmanager
def captured(run_dir: Path | None) -> Iterator[dict[str, Any]]:
    """Yield streams for subprocess: the opened input, and output files in the run folder, or dynotune's own streams.

    Raises CannotRunHere: the folder cannot be written.
    """
    if run_dir is None:
        yield {}
        return
    with contextlib.ExitStack() as stack:
        with may_fail(f"write in the run folder {run_dir}"):
            stdout, stderr = (stack.enter_context((run_dir / name).open("ab")) for name in (STDOUT, STDERR))
        yield {"stdin": stack.enter_context(opened()), "stdout": stdout, "stderr": stderr}


def is_pipe() -> bool:
    """Tell whether dynotune's standard input is a pipe, which captured runs do not get."""
    return _is(stat.S_ISFIFO)


def _is(kind: Callable[[int], bool]) -> bool:
    try:
        return kind(os.fstat(0).st_mode)
    except OSError:  # standard input is closed
        return False
