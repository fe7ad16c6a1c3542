"""Imports what its arguments name; then runs the programs that standard input tells, each in a fork of itself.

A program is a line of JSON: `argv`, `cwd`, and `folder` for its output. Its exit code goes to standard output.
"""

import importlib
import json
import os
import runpy
import sys
from pathlib import Path


def serve():
    """Returns in each fork, with its program."""
    for name in sys.argv[1:]:
        importlib.import_module(name)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            return json.loads(line)
        _, status = os.waitpid(pid, 0)
        os.write(1, b"%d\n" % os.waitstatus_to_exitcode(status))
    sys.exit()


def become(argv, cwd, folder):
    """As if an interpreter had been started so."""
    os.chdir(cwd)
    for descriptor, name in enumerate((os.devnull, "stdout", "stderr")):
        file = os.open(Path(folder, name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC if descriptor else os.O_RDONLY, 0o600)
        os.dup2(file, descriptor)
        os.close(file)
    sys.argv[:] = argv
    sys.path[0] = str(Path(argv[0]).parent)


if __name__ == "__main__":
    become(**serve())
    runpy.run_path(sys.argv[0], run_name="__main__")
