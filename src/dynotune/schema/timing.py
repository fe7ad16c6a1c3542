"""Timing of the plain window: the length of its steps, its slowest steps, and work that only some steps
do."""

from typing import Literal

import msgspec

Why = Literal["garbage", "allocation", "compilation", "epoch", "loader", "work"]

PeriodicKind = Literal["validation", "checkpoint", "epoch", "other"]


class PeriodicWork(msgspec.Struct, frozen=True, kw_only=True):
    """Work that only some steps do, and that makes these steps longer.

    Args:
        kind: the kind of work, as far as names of functions and files show it.
        function: source line at which the program begins the work, `train.py(70): main`; `text`: the line's
            text.
        callee: the function in which most of the work happens; "" if the source line itself takes the time.
        num_steps: number of steps in the window that did the work; `every`: median distance of these steps,
            in steps; of a single step, its distance from the last step before the window that took half as
            long or more.
        share: share of the window's time that the work takes.
    """

    kind: PeriodicKind
    function: str
    text: str = ""
    callee: str = ""
    num_steps: int
    every: int | None = None
    share: float


class SlowStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step among the slowest hundredth. `causes`: events in the step; "work": an entry of
    `ProcessState.periodic`."""

    index: int
    step_s: float
    wait_s: float
    causes: list[Why] = []


class Timing(msgspec.Struct, frozen=True, kw_only=True, tag="timing"):
    """Timing of the plain window: nothing was recorded, and the device was synchronised only at the window's
    two ends.

    Args:
        step_s: length of the window divided by its steps, in seconds.
        wait_s: mean seconds per step inside `next()` of loaders and inside `iter()` at an epoch's begin; None
            if the program used no torch loader.
        epoch_begin_s: median seconds of the steps that begin an epoch; None without such steps.
        typical_step_s: median seconds of the steps without any of the events in `slow`.
        steady: whether the steps had become steady before the window began.
    """

    num_steps: int
    window_s: float
    step_s: float
    median_step_s: float
    p99_step_s: float
    longest_step_s: float
    wait_s: float | None = None
    samples_per_s: float | None = None
    num_epochs: int = 0
    epoch_begin_s: float | None = None
    time_to_first_step_s: float | None = None
    num_compilations: int = 0
    num_device_allocations: int | None = None
    typical_step_s: float | None = None
    slow: list[SlowStep] = []
    steady: bool = True
