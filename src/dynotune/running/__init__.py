"""Ask a program that already runs why it is slow: by its process id, without starting or changing it.

`diagnose_running` climbs `rungs`, each of which needs more of the program or of this machine, and says which
one it reached. `watched_program` keeps the agent in a program, for `watch`. `prepared` has a program that is
started now answer a recording later. `targets` finds the
program's processes below a process id. `thread_states` looks at them, and `parts` names the part of the
program that holds it up. `target_facts` collects the facts of the program's own environment for the rules of
`doctor`, and `stacks` asks py-spy for the lines that run. `kineto_door` has the program record some steps,
and `recorded_steps` concludes from them as `diagnose` does. `injected` loads the agent into a Python that
runs, `joined_program` holds it there and has it leave, and `joined_steps` makes a live diagnosis of that.

Elsewhere: `watch` follows a run that dynotune started, and `diagnose` starts the command that it diagnoses.
"""

from typing import TYPE_CHECKING

from dynotune.lazy_face import lazy_face

if TYPE_CHECKING:
    from dynotune.running.joined_watch import watched_program
    from dynotune.running.kineto_door import prepared
    from dynotune.running.running_diagnosis import diagnose_running

__all__ = ["diagnose_running", "prepared", "watched_program"]

_HOMES = {
    "running_diagnosis": "diagnose_running",
    "kineto_door": "prepared",
    "joined_watch": "watched_program",
}

__getattr__ = lazy_face(__name__, _HOMES)
