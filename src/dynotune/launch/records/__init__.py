"""Read the records that the agent wrote, and derive the facts of a run from the records.

`Record` has the record of one process, which is read while the file grows. `TaskPage` is the counter through
which tasks reach the agent. `streams` has the frames of streams. `agent/core/writer.py` defines the file
layout.
"""

from typing import TYPE_CHECKING

from dynotune.lazy_face import lazy_face

if TYPE_CHECKING:
    from dynotune.launch.records.batch_costs import with_loading
    from dynotune.launch.records.oom import why_memory_ran_out
    from dynotune.launch.records.periodic import VALIDATION
    from dynotune.launch.records.process_state import failed_parts, state_of_process
    from dynotune.launch.records.process_summary import read_back, summarise
    from dynotune.launch.records.reader import Records
    from dynotune.launch.records.record import ALLOCATED, COMPILED, EPOCH, Record
    from dynotune.launch.records.task_page import TaskPage

__all__ = [
    "ALLOCATED",
    "COMPILED",
    "EPOCH",
    "VALIDATION",
    "Record",
    "Records",
    "TaskPage",
    "failed_parts",
    "read_back",
    "state_of_process",
    "streams",
    "summarise",
    "why_memory_ran_out",
    "with_loading",
]

_HOMES = {
    "record": "ALLOCATED COMPILED EPOCH Record",
    "reader": "Records",
    "process_summary": "read_back summarise",
    "task_page": "TaskPage",
    "periodic": "VALIDATION",
    "process_state": "failed_parts state_of_process",
    "batch_costs": "with_loading",
    "oom": "why_memory_ran_out",
}

__getattr__ = lazy_face(__name__, _HOMES)
