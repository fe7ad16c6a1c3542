"""The child: sets up `apply.Settings` as the agent does; the program finds `out` among its globals.

With a job it does that one. Without, it imports torch and forks for each job that standard input names.
"""

import functools
import json
import os
import runpy
import sys
import threading
import types
from pathlib import Path


def main(job):
    package = types.ModuleType("_dynotune_agent")
    package.__path__ = [job["agent"]]
    sys.modules["_dynotune_agent"] = package
    from _dynotune_agent.apply import Settings

    events = []
    settings = Settings(job["settings"], events.append)
    settings.before_torch()
    if job["torch"]:
        import torch

        settings.after_torch(torch)
        watch_roots(torch, settings)
        watch_loaders(torch, settings)
    out = {}
    runpy.run_path(job["program"], {"out": out, "settings": settings}, run_name="__main__")
    outcome = {"out": out, "events": events, "readback": settings.readback()}
    Path(job["outcome"]).write_text(json.dumps(outcome))


def watch_roots(torch, settings):
    original = torch.nn.Module.__call__
    known, inside = set(), threading.local()

    def __call__(module, *args, **kwargs):
        if torch.compiler.is_compiling() or getattr(inside, "root", False):
            return original(module, *args, **kwargs)
        inside.root = True
        try:
            if id(module) not in known:
                known.add(id(module))
                settings.on_root(module)
            if settings.wants_around:
                return settings.around_root(original, module, args, kwargs)
            return original(module, *args, **kwargs)
        finally:
            inside.root = False

    torch.nn.Module.__call__ = __call__


def watch_loaders(torch, settings):
    loader_class = torch.utils.data.DataLoader
    original, drawn = loader_class.__iter__, set()

    @functools.wraps(original)
    def __iter__(loader):
        if id(loader) not in drawn:
            drawn.add(id(loader))
            settings.on_loader(loader)
        return original(loader)

    loader_class.__iter__ = __iter__


def fork_for_each_job():
    """A child returns, with its job as its only argument; the others' exit codes go to standard output."""
    import torch  # noqa: F401

    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            become(Path(line.rstrip("\n")))
            return
        _, status = os.waitpid(pid, 0)
        os.write(1, b"%d\n" % os.waitstatus_to_exitcode(status))
    sys.exit()


def become(job):
    sys.argv.append(str(job))
    os.chdir(job.parent)
    for descriptor, name, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, "stdout", os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        (2, "stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
    ):
        file = os.open(name, flags, 0o600)
        os.dup2(file, descriptor)
        os.close(file)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        fork_for_each_job()
    main(json.loads(Path(sys.argv[1]).read_text()))
