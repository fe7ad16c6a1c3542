"""The child: sets up `sites.Settings` as the agent does; the program finds `out` among its globals."""

import functools
import json
import runpy
import sys
import types
from pathlib import Path


def main(job):
    package = types.ModuleType("_dynotune_agent")
    package.__path__ = [job["agent"]]
    sys.modules["_dynotune_agent"] = package
    from _dynotune_agent.core.errors import ErrorLog
    from _dynotune_agent.core.hooks import AfterImport
    from _dynotune_agent.core.program import Program
    from _dynotune_agent.sites.settings import Settings

    events = []
    program = Program("", events.append, ErrorLog(events.append))
    program.steps = types.SimpleNamespace(optimizers=[])
    settings = Settings(job["settings"], program)
    settings.before_torch()
    hooks = AfterImport(raised)
    hooks.install()
    settings.on_imports(hooks)
    if job["torch"]:
        import torch

        program.torch = torch
        settings.after_torch()
        watch_roots(torch, settings)
        watch_loaders(torch, settings)
        skip_own_frames()
    out = {}
    runpy.run_path(job["program"], {"out": out, "settings": settings}, run_name="__main__")
    outcome = {"out": out, "events": events, "readback": settings.readback()}
    Path(job["outcome"]).write_text(json.dumps(outcome))


def raised(where, error):
    raise AssertionError(where) from error


def watch_roots(torch, settings):
    from _dynotune_agent.steps.outermost_modules import OutermostModules

    around = settings.around_root if settings.wants_around else None
    OutermostModules(torch, settings.on_root, settings.root_ran, lambda *_: None, around, raised).watch_all()


def skip_own_frames():
    """As the agent does once the compiler is imported: it does not begin with a frame of the agent."""
    from _dynotune_agent.core.covers import skip_agent_code

    if "torch._dynamo.eval_frame" in sys.modules:
        skip_agent_code(sys.modules["torch._dynamo.eval_frame"])


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
