"""Provide the notebook magic `%%dynotune`: after `%load_ext dynotune.api`, `%%dynotune diagnose` diagnoses
its cell."""

import hashlib
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from dynotune.schema import private
from dynotune.schema.errors import UsageError


def load_ipython_extension(shell: Any) -> None:
    """Register the magic `%%dynotune` in a notebook; `%load_ext dynotune.api` calls this function."""
    shell.register_magic_function(run_cell, "cell", "dynotune")


def run_cell(line: str, cell: str) -> None:
    """Run a subcommand on the program in a cell, in separate processes, and print the report.

    The cell must be a whole program without names of other cells. Modules beside the notebook can be
    imported.

    Raises UsageError if the line cannot be split into words.
    """
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UsageError(
            f"{line!r} is no line of options: {error}.", hint="For example %%dynotune diagnose"
        ) from None
    # It stays, so that what the answer suggests next can be typed.
    digest = hashlib.sha256(cell.encode()).hexdigest()[:12]
    program = private.folder(private.state_folder(), "cells") / f"{digest}.py"
    program.write_text(cell, encoding="utf-8")
    beside = os.pathsep.join(filter(None, (str(Path.cwd()), os.environ.get("PYTHONPATH"))))
    asked = subprocess.Popen(
        [sys.executable, "-m", "dynotune", *words, "--", sys.executable, str(program)],
        env=os.environ | {"PYTHONPATH": beside},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        # Some notebook kernels interrupt their whole group. A child in its own session is interrupted only
        # by this function.
        start_new_session=True,
    )
    assert asked.stdout is not None
    while True:
        # The subcommand is told, and says how it can go on.
        try:
            for told in asked.stdout:
                sys.stdout.write(told)
            asked.wait()
            break
        except KeyboardInterrupt:
            asked.send_signal(signal.SIGINT)
