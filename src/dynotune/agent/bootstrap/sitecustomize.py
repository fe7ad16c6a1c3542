"""Start the agent in this interpreter, then leave the interpreter as if the agent had not been started.

This folder is first on PYTHONPATH and has no other module, so the folder hides no module of the user's.
Python imports this module at start; this module then runs the user's own `sitecustomize`, which it hides.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def _load_agent(here: str) -> None:
    begun_s = time.perf_counter()
    folder = os.path.dirname(here)
    loader = importlib.machinery.SourceFileLoader("_dynotune_agent", os.path.join(folder, "__init__.py"))
    spec = importlib.machinery.ModuleSpec("_dynotune_agent", loader, origin=loader.path, is_package=True)
    path = spec.submodule_search_locations = [folder]
    spec.has_location = True
    agent: Any = type(sys)("_dynotune_agent")
    agent.__spec__, agent.__loader__, agent.__file__ = spec, loader, loader.path
    agent.__path__, agent.__package__ = path, "_dynotune_agent"
    agent.begun_s = begun_s
    sys.modules["_dynotune_agent"] = agent
    loader.exec_module(agent)
    agent.start()


def _give_back_names(found: set[str], path: list[str]) -> None:
    """Let the program's modules come before standard modules of the same name; the agent keeps its own
    copies.

    `found`: names of the modules that were loaded before the agent. `path`: folders that come before the
    standard library's.
    """
    new = {name: getattr(module, "__spec__", None) for name, module in sys.modules.items()}
    for name in set(new) - found:
        first = name.partition(".")[0]
        spec = importlib.machinery.PathFinder.find_spec(first, path)
        if spec is None or spec.loader is None or name.startswith("_dynotune_agent"):
            continue
        if spec.origin != getattr(new.get(first), "origin", None):
            del sys.modules[name]


def _typed_folders() -> list[str]:
    """Return the entries of sys.path that PYTHONPATH named."""
    if sys.flags.ignore_environment:
        return []
    typed = {os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    return [entry for entry in sys.path if os.path.abspath(entry) in typed]


def _program_folder() -> str | None:
    """Return the folder that Python puts first on its path after site."""
    if sys.flags.isolated or getattr(sys.flags, "safe_path", False):
        return None
    word = sys.argv[0]
    if word in ("", "-", "-c", "-m"):
        return os.getcwd()
    return word if os.path.isdir(word) else os.path.dirname(os.path.realpath(word))


def _keep_bytecode(folder: str) -> None:
    """Keep bytecode of modules without bytecode in `folder`, so that each is compiled once and other folders
    stay.

    Existing bytecode is read as usual. `folder` gets bytecode even if PYTHONDONTWRITEBYTECODE is set.
    """
    external: Any = importlib.machinery.SourceFileLoader.get_code.__globals__
    usual, loader, dont_write = (
        external["cache_from_source"],
        external["SourceFileLoader"],
        sys.dont_write_bytecode,
    )
    write = loader._cache_bytecode

    def cache_from_source(path: str, *args: Any, **kwargs: Any) -> str:
        found: str = usual(path, *args, **kwargs)
        return found if os.path.exists(found) else folder + os.path.abspath(found)

    def cache_bytecode(self: Any, source_path: str, bytecode_path: str, data: Any) -> None:
        if bytecode_path.startswith(folder) or not dont_write:
            write(self, source_path, bytecode_path, data)

    external["cache_from_source"], loader._cache_bytecode = cache_from_source, cache_bytecode
    sys.dont_write_bytecode = False


def _run_hidden() -> None:
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        # Python's site module gets the same error without a sitecustomize, and continues.
        raise ModuleNotFoundError("No module named 'sitecustomize'", name="sitecustomize")
    module: Any = type(sys)("sitecustomize")
    module.__spec__, module.__loader__, module.__file__ = spec, spec.loader, spec.origin
    module.__package__, module.__cached__ = "", spec.cached
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _here]
if os.environ.get("DYNOTUNE_BYTECODE"):
    try:
        _keep_bytecode(os.environ["DYNOTUNE_BYTECODE"])
    except Exception:
        pass  # another implementation of Python compiles in its own way
if os.environ.get("DYNOTUNE_RUN"):
    _found, _typed, _program = set(sys.modules), _typed_folders(), _program_folder()
    _path = list(sys.path)
    try:
        # The agent's standard modules are the library's, whatever PYTHONPATH names.
        sys.path[:] = [entry for entry in _path if entry not in _typed]
        try:
            _load_agent(_here)
        finally:
            sys.path[:] = _path
        _give_back_names(_found, [*([] if _program is None else [_program]), *_typed])
    except Exception:
        # The program continues without the agent; dynotune notices that no record was begun.
        sys.modules.pop("_dynotune_agent", None)
_run_hidden()
