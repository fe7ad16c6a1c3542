"""The agent's own modules in a program that it comes to late."""

from __future__ import annotations

import importlib
import os
import sys

from .core.pieces import Pieces

_FOLDERS = ("core", "steps", "facts", "sites", "tasks")


def import_in_pieces() -> None:
    """Import all modules, in the present thread: none is left for the program's own thread to import."""
    package, pieces = __name__.rpartition(".")[0], Pieces()
    for folder in _FOLDERS:
        names = os.listdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), folder))
        for name in sorted(names):
            stem, ending = os.path.splitext(name)
            if ending in (".py", ".pyc"):
                importlib.import_module("%s.%s.%s" % (package, folder, stem))
                pieces.pause()


def forget_modules() -> None:
    """Remove the agent's modules and what the interpreter remembers of their folder, so that a later agent
    begins anew."""
    package = __name__.rpartition(".")[0]
    folder = os.path.dirname(os.path.abspath(__file__))
    for name in list(sys.modules):
        if name == package or name.startswith(package + "."):
            del sys.modules[name]
    for path in list(sys.path_importer_cache):
        if path == folder or path.startswith(folder + os.sep):
            del sys.path_importer_cache[path]
