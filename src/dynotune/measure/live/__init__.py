"""Live runs: one start of the command that carries out tasks, and what its steps say.

`TaskRunner` keeps a live run and gives it tasks, `arm_run` runs an arm as fresh processes, `pilot` plans a window from
a first run, `placement` puts a task where all ranks can take it up, `recording` records traces, `switching` compares
arms within the live run, `lanes` puts fresh runs side by side. `machine_lock` waits until no other dynotune measures.

A live run calls `launch` for the process tree and its records, and `probe` for samples beside it. Verdicts on two
arms are made in `measure.comparison`.
"""

from dynotune.measure.live.arm_run import SYNCHRONISED, refuse_impossible, run_settings
from dynotune.measure.live.machine import checked_facts, facts_of, machine_lock, refuse_another_machine, shared_facts
from dynotune.measure.live.outcome import Outcome, refuse_failed, refuse_rejected, stepping
from dynotune.measure.live.pilot import COLD_KEPT, FirstStep, Steadiness, WindowPlan, compiles, limit_s, steady_steps
from dynotune.measure.live.recording import OVERSTATED, Recorder, Recording, record
from dynotune.measure.live.request import CompareRequest, RecordRequest, StartRequest, Watcher
from dynotune.measure.live.task_runner import TaskRunner
from dynotune.measure.live.warmup import MAX_WINDOW_S, MIN_WINDOW_S, MIN_WINDOW_STEPS

__all__ = [
    "COLD_KEPT",
    "MAX_WINDOW_S",
    "MIN_WINDOW_S",
    "MIN_WINDOW_STEPS",
    "OVERSTATED",
    "SYNCHRONISED",
    "CompareRequest",
    "FirstStep",
    "Outcome",
    "RecordRequest",
    "Recorder",
    "Recording",
    "StartRequest",
    "Steadiness",
    "TaskRunner",
    "Watcher",
    "WindowPlan",
    "cautions",
    "checked_facts",
    "compiles",
    "facts_of",
    "lanes",
    "limit_s",
    "machine_lock",
    "pilot",
    "placement",
    "record",
    "refuse_another_machine",
    "refuse_failed",
    "refuse_impossible",
    "refuse_rejected",
    "run_settings",
    "shared_facts",
    "steady_steps",
    "stepping",
    "switching",
]
