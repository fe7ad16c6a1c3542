"""Imports what its arguments name; then runs the programs that standard input tells, each in a fork of
itself.

A program is a line of JSON: `argv`, `cwd`, `folder` for its output, `env` (or null for what this process has)
and `first`, a sitecustomize to begin with (or ""). Its exit code goes to standard output.
"""

import atexit
import gc
import importlib
import importlib.util
import json
import os
import sys
import threading
import types
from pathlib import Path


def serve():
    """Returns in each fork, with its program."""
    gc.disable()  # nothing of what is imported is garbage
    for name in sys.argv[1:]:
        importlib.import_module(name)
    gc.freeze()
    gc.enable()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            return json.loads(line)
        _, status = os.waitpid(pid, 0)
        os.write(1, b"%d\n" % os.waitstatus_to_exitcode(status))
    sys.exit()


def become(argv, cwd, folder, env, first):
    """As if an interpreter had been started so."""
    os.chdir(cwd)
    for descriptor, name in enumerate((os.devnull, "stdout", "stderr")):
        file = os.open(
            Path(folder, name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC if descriptor else os.O_RDONLY, 0o600
        )
        os.dup2(file, descriptor)
        os.close(file)
    sys.argv[:] = argv
    sys.path[0] = str(Path(argv[0]).parent)
    if env is not None:
        os.environ.clear()
        os.environ.update(env)
    if first:
        customize(first)
    leave(status_of(argv[0]))


def customize(file):
    """Like Python's own site module, which forgives that there is none."""
    spec = importlib.util.spec_from_file_location("sitecustomize", file)
    sys.modules["sitecustomize"] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ImportError as error:
        if error.name != "sitecustomize":
            raise


def main(file):
    """A program's globals last until the process ends."""
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    module.__file__, module.__builtins__ = file, __builtins__
    exec(compile(Path(file).read_bytes(), file, "exec"), vars(module))


def status_of(file):
    """As an interpreter exits after it has run the file."""
    try:
        main(file)
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    except Exception:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def leave(status):
    """As an interpreter ends, except that nothing takes torch's modules apart, which is most of what a small
    program takes."""
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
    os._exit(status)


if __name__ == "__main__":
    become(**serve())
