"""Make live runs: one start of the command whose processes carry out tasks and record the times of steps.

`TaskRunner` gives tasks to a live run. `arm_run` runs settings in fresh processes. `readiness` decides when a
run has made enough steps, `window_plan` plans a window from pilots, `window_length` its number of steps, and
`compilation` estimates what a pilot compiled. `baseline_shift` says whether blocks may prove a speed-up.
`placement` places a task at a step that all ranks reach. `delays` delays parts of the steps. `recording`
records traces. `turns` has candidates take turns with the baseline within the live run, and `switching` reads
what comes of it. `lanes` chooses lanes, `lane_speed` leaves out slow lanes, and `lane_order` runs fresh
processes in lanes. `reservation` reserves the machine.

A live run uses `launch` for processes and records, and `probe` for samples. `measure.comparison` gives the
verdicts.
"""

from dynotune.measure.live.arm_run import SYNCHRONISED, refuse_impossible, run_settings
from dynotune.measure.live.compilation import COLD_KEPT, compiles
from dynotune.measure.live.delays import Delay, delay_tests
from dynotune.measure.live.live_run import Join
from dynotune.measure.live.machine import checked_facts, facts_of, refuse_another_machine, shared_facts
from dynotune.measure.live.outcome import Outcome, refuse_failed, refuse_rejected, stepping
from dynotune.measure.live.readiness import FirstStep, Steadiness, steady_steps
from dynotune.measure.live.recording import NotRecorded, Recorder, Recording, record
from dynotune.measure.live.request import CompareRequest, RecordRequest, StartRequest, Watcher
from dynotune.measure.live.reservation import machine_lock
from dynotune.measure.live.task_runner import TaskRunner
from dynotune.measure.live.time_limit import limit_s
from dynotune.measure.live.turns import LEAST_S, Live, Turns, TurnsPlan
from dynotune.measure.live.window_length import MAX_WINDOW_S, MIN_WINDOW_S, MIN_WINDOW_STEPS
from dynotune.measure.live.window_plan import WindowPlan

__all__ = [
    "COLD_KEPT",
    "LEAST_S",
    "MAX_WINDOW_S",
    "MIN_WINDOW_S",
    "MIN_WINDOW_STEPS",
    "SYNCHRONISED",
    "CompareRequest",
    "Delay",
    "FirstStep",
    "Join",
    "Live",
    "NotRecorded",
    "Outcome",
    "RecordRequest",
    "Recorder",
    "Recording",
    "StartRequest",
    "Steadiness",
    "TaskRunner",
    "Turns",
    "TurnsPlan",
    "Watcher",
    "WindowPlan",
    "cautions",
    "checked_facts",
    "compiles",
    "delay_tests",
    "facts_of",
    "lane_order",
    "lane_speed",
    "lanes",
    "limit_s",
    "machine_lock",
    "placement",
    "readiness",
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
    "window_plan",
]
