"""Make live runs: one start of the command whose processes carry out tasks and record the times of steps.

`TaskRunner` gives tasks to a live run. `arm_run` runs settings in fresh processes. `pilot` plans a window from a first
run. `placement` places a task at a step that all ranks reach. `recording` records traces. `switching` compares
candidates within the live run. `lanes` runs fresh processes side by side. `machine_lock` reserves the machine.

A live run uses `launch` for processes and records, and `probe` for samples. `measure.comparison` gives the verdicts.
"""

from dynotune.measure.live.arm_run import SYNCHRONISED, refuse_impossible, run_settings
from dynotune.measure.live.blocks import Block
from dynotune.measure.live.machine import checked_facts, facts_of, machine_lock, refuse_another_machine, shared_facts
from dynotune.measure.live.outcome import Outcome, refuse_failed, refuse_rejected, stepping
from dynotune.measure.live.pilot import COLD_KEPT, FirstStep, Steadiness, WindowPlan, compiles, limit_s, steady_steps
from dynotune.measure.live.recording import OTHER_PROFILER, OVERSTATED, Recorder, Recording, record
from dynotune.measure.live.request import CompareRequest, RecordRequest, StartRequest, Watcher
from dynotune.measure.live.task_runner import TaskRunner
from dynotune.measure.live.warmup import MAX_WINDOW_S, MIN_WINDOW_S, MIN_WINDOW_STEPS

__all__ = [
    "COLD_KEPT",
    "MAX_WINDOW_S",
    "MIN_WINDOW_S",
    "MIN_WINDOW_STEPS",
    "OTHER_PROFILER",
    "OVERSTATED",
    "SYNCHRONISED",
    "Block",
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
