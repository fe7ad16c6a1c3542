"""The child: sets up `apply.Settings` as the agent does; the program finds `out` among its globals."""

import functools
import json
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


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
