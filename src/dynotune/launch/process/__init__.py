"""Start a command, supervise its process tree, and end all of its processes.

`dynotune.launch` offers the functions that most callers need. This package has the others: `environment`
turns settings into variables and a plan for the agent, `processes` reads process tables, `TransparentRun` is
the run of `dynotune run`, and `origin` distinguishes folders that this user began on this machine from all
others.

The supervisor imports `processes`, `overlay` and `inboxes` without site-packages. So these modules use the
standard library only, and this `__init__` imports lazily.
"""

from typing import TYPE_CHECKING

from dynotune.lazy_face import lazy_face

if TYPE_CHECKING:
    from dynotune.launch.process.environment import ALLOC_CONF_NAMES, split_alloc_conf
    from dynotune.launch.process.executable import find_executable
    from dynotune.launch.process.foreground import TransparentRun
    from dynotune.launch.process.leases import Lease, temporary_folder
    from dynotune.launch.process.run_folder import STDERR, STDOUT, fresh_folder, has_room, input_is_pipe

__all__ = [
    "ALLOC_CONF_NAMES",
    "STDERR",
    "STDOUT",
    "Lease",
    "TransparentRun",
    "environment",
    "find_executable",
    "fresh_folder",
    "has_room",
    "input_is_pipe",
    "origin",
    "processes",
    "revision",
    "sandbox",
    "split_alloc_conf",
    "temporary_folder",
    "variants",
]

_HOMES = {
    "environment": "ALLOC_CONF_NAMES split_alloc_conf",
    "leases": "Lease temporary_folder",
    "run_folder": "STDERR STDOUT fresh_folder has_room input_is_pipe",
    "foreground": "TransparentRun",
    "executable": "find_executable",
}

__getattr__ = lazy_face(__name__, _HOMES)
