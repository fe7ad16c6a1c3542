"""Name places in the program as traces do: `train.py(31): main`."""

from __future__ import annotations

import os
import sys
import sysconfig

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, FrameType
    from typing import Any

_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_STANDARD = tuple({os.path.dirname(os.__file__) + os.sep, sysconfig.get_path("stdlib") + os.sep})
_INSTALLED = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)
_MOST_FRAMES = 200
_installed: dict[str, frozenset[str]] = {}
"""Names of modules and packages in a folder, as recorded by installers."""
WHOSE_USER, WHOSE_TORCH, WHOSE_INSTALLED = "user", "torch", "installed"
WHOSE_STANDARD, WHOSE_AGENT = "standard", "agent"


def place() -> str:
    """Return the innermost frame of the user's code; else the innermost frame outside torch and the agent;
    else ""."""
    frame = _frame()
    return "" if frame is None else function(frame.f_code, frame.f_lineno)


def line() -> str:
    """Return the result of `place` as `file:line`."""
    frame = _frame()
    return "" if frame is None else "%s:%d" % (short_path(frame.f_code.co_filename), frame.f_lineno)


def function(code: CodeType, line: int | None = None) -> str:
    """Name a function in the way in which traces of torch's profiler name functions."""
    return "%s(%d): %s" % (short_path(code.co_filename), line or code.co_firstlineno, code.co_name)


def whose(code: CodeType, module: dict[str, Any]) -> str:
    """Classify code by its module's globals: return the constant of this module that names the code's
    owner."""
    return whose_file(code.co_filename, module)


def whose_file(file: str, module: dict[str, Any]) -> str:
    """Classify the code of a file as `whose` does; of the module's globals only the name and file count."""
    if file.startswith((_OWN, "<frozen")):
        return WHOSE_AGENT
    if file == "<string>":  # generated, as the constructor of a data class: it belongs to its module
        file = str(module.get("__file__") or file)
    if str(module.get("__name__")).partition(".")[0] == "torch":
        return WHOSE_TORCH
    if any(folder in file for folder in _INSTALLED):
        return WHOSE_INSTALLED
    if file.startswith(_STANDARD):
        return WHOSE_STANDARD
    return WHOSE_INSTALLED if _is_installed(file, str(module.get("__name__"))) else WHOSE_USER


def _is_installed(file: str, name: str) -> bool:
    """Tell whether the file belongs to a package installed into an arbitrary folder, as by `pip install
    --target`."""
    folder = os.path.dirname(file)
    for _ in range(name.count(".") + (os.path.basename(file) == "__init__.py")):
        folder = os.path.dirname(folder)
    if folder not in _installed:
        _installed[folder] = _names_installed(folder) if folder in sys.path else frozenset()
    return name.partition(".")[0] in _installed[folder]


def _names_installed(folder: str) -> frozenset[str]:
    found: set[str] = set()
    for entry in os.listdir(folder) if os.path.isdir(folder) else ():
        if entry.endswith(".dist-info"):
            try:
                with open(os.path.join(folder, entry, "RECORD"), encoding="utf-8") as record:
                    found.update(
                        line.partition(",")[0].partition("/")[0].removesuffix(".py") for line in record
                    )
            except (OSError, ValueError):  # an unreadable file lists nothing
                continue
    return frozenset(found)


def _frame() -> FrameType | None:
    frame: FrameType | None = sys._getframe(2)
    installed: FrameType | None = None
    for _ in range(_MOST_FRAMES):
        if frame is None:
            break
        owner = whose(frame.f_code, frame.f_globals)
        if owner == WHOSE_USER:
            return frame
        if owner == WHOSE_INSTALLED and installed is None:
            installed = frame
        frame = frame.f_back
    return installed


def short_path(file: str) -> str:
    """Return a path relative to the working folder if the path is below that folder, else the path itself."""
    try:
        folder = os.getcwd() + os.sep
    except OSError:  # the working folder is gone
        return file
    return file[len(folder) :] if file.startswith(folder) else file
