"""Turn settings and a command into a process tree, and read the records of the tree's processes.

`process/` starts a command and ends all processes that descend from it. `process/` also forwards signals,
gives the command a copy-on-write view of the working directory, and lists the files that the command changed.
`records/` reads what the agent wrote. `caches/` handles compile and kernel caches. `measuring` locks cores
and GPUs against a second dynotune; `sweep` removes the remains of killed runs.

The room `knobs` states the meaning of a setting. `measure` decides when a run is long enough, and interprets
times.

The supervisor, a separate process, imports from this room without site-packages, so `__init__` imports
lazily.
"""

from typing import TYPE_CHECKING

from dynotune.lazy_face import lazy_face

if TYPE_CHECKING:
    from dynotune.launch.process.executable import check_run
    from dynotune.launch.process.foreground import die_by
    from dynotune.launch.process.launcher import Exit, Launched, Started, start
    from dynotune.launch.process.leases import size_bytes, sweep
    from dynotune.launch.process.lock import measuring
    from dynotune.launch.process.revision import Revision
    from dynotune.launch.process.run_folder import (
        error_line,
        hold,
        in_use,
        last_lines,
        new_run_folder,
        remove_run,
    )
    from dynotune.launch.process.sandbox import Seed

__all__ = [
    "Exit",
    "Launched",
    "Revision",
    "Seed",
    "Started",
    "check_run",
    "die_by",
    "error_line",
    "hold",
    "in_use",
    "last_lines",
    "measuring",
    "new_run_folder",
    "remove_run",
    "size_bytes",
    "start",
    "sweep",
]

_HOMES = {
    "process.executable": "check_run",
    "process.launcher": "Exit Launched Started start",
    "process.revision": "Revision",
    "process.sandbox": "Seed",
    "process.foreground": "die_by",
    "process.run_folder": "error_line hold in_use last_lines new_run_folder remove_run",
    "process.lock": "measuring",
    "process.leases": "size_bytes sweep",
}

__getattr__ = lazy_face(__name__, _HOMES)
