"""`python -m dynotune`, and `dynotune`."""

import os
import signal
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line. An interrupt while it is imported ends the process without a traceback."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    _own_modules_first()
    from dynotune import cli

    signal.signal(signal.SIGINT, handler)
    cli.main()


def _own_modules_first() -> None:
    """Find our own modules first: PYTHONPATH and the working folder are the command's, and may hold an
    `inspect.py`."""
    try:
        here = os.getcwd()  # noqa: PTH109
    except OSError:  # it is gone
        return
    theirs = {os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep)}  # noqa: PTH100
    theirs.add(here)  # `python -m` puts it first
    last = [path for path in sys.path if os.path.abspath(path) in theirs]  # noqa: PTH100
    sys.path[:] = [path for path in sys.path if path not in last] + last


if __name__ == "__main__":
    main()
