"""Settings and a command become a process tree and its records.

`process/` starts a command and ends everything that came of it, passes signals on, gives it a copy-on-write view of
the working directory and notes the files it changed; `records/` reads what the agent wrote; `caches/` knows compile and
kernel caches. `measuring` is the lock between two dynotunes, `sweep` removes what a killed one left.

What a setting means is stated in `knobs`. When a run is long enough, and what its times say, is `measure`'s.

The supervisor is a process of its own that imports from here without site-packages, so this face imports late.
"""

from typing import TYPE_CHECKING

from dynotune.lazy_face import lazy_face

if TYPE_CHECKING:
    from dynotune.launch.process.executable import check_run
    from dynotune.launch.process.foreground import die_by
    from dynotune.launch.process.launcher import Exit, Launched, start
    from dynotune.launch.process.leases import size_bytes, sweep
    from dynotune.launch.process.lock import measuring
    from dynotune.launch.process.revision import Revision
    from dynotune.launch.process.run_folder import error_line, hold, in_use, last_lines, new_run_folder, remove_run
    from dynotune.launch.process.sandbox import Seed

__all__ = [
    "Exit",
    "Launched",
    "Revision",
    "Seed",
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
    "process.launcher": "Exit Launched start",
    "process.revision": "Revision",
    "process.sandbox": "Seed",
    "process.foreground": "die_by",
    "process.run_folder": "error_line hold in_use last_lines new_run_folder remove_run",
    "process.lock": "measuring",
    "process.leases": "size_bytes sweep",
}

__getattr__ = lazy_face(__name__, _HOMES)
