"""Settings and a command become a process tree and a Run.

Here: run folders, starting a command and ending everything that came of it, passing signals on, a
copy-on-write view of the working directory, the files a run changed, and the lock between two measuring
dynotunes. Not here: what a setting means (`knobs`), when a run is long enough or what its times say
(`measure`).

The supervisor is a process of its own that imports from here without site-packages, so this face imports
late, and in `process/` `processes`, `signals`, `overlay` and `supervisor` use the standard library alone.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dynotune.launch.process.changes import Changes
    from dynotune.launch.process.foreground import die_by, run_in_foreground
    from dynotune.launch.process.launcher import Exit, Launched, SandboxMode, start
    from dynotune.launch.process.lock import measuring, visible_gpus
    from dynotune.launch.process.run_folder import last_lines, new_run_folder

__all__ = [
    "Changes",
    "Exit",
    "Launched",
    "SandboxMode",
    "die_by",
    "last_lines",
    "measuring",
    "new_run_folder",
    "run_in_foreground",
    "start",
    "visible_gpus",
]

_HOME = {
    "Changes": "process.changes",
    "Exit": "process.launcher",
    "Launched": "process.launcher",
    "SandboxMode": "process.launcher",
    "die_by": "process.foreground",
    "last_lines": "process.run_folder",
    "measuring": "process.lock",
    "new_run_folder": "process.run_folder",
    "run_in_foreground": "process.foreground",
    "start": "process.launcher",
    "visible_gpus": "process.lock",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
