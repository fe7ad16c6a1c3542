"""Tasks that a live run can do between two steps, and the file that requests a task."""

from typing import Literal

import msgspec

PageCache = Literal["warm", "cold"]


MOST_RECORDED_S = 60.0
"""Most seconds of a recording, unless it was asked for with fewer: longer traces can hardly be opened."""


class PlannedSetting(msgspec.Struct, frozen=True):
    """A setting for the agent, with its site as plain data. `keep`: whether to undo changes by the
    program."""

    knob: str
    value: bool | int | float | str
    site: dict[str, str | list[str] | dict[str, list[str]]]
    keep: bool = True


class _At(msgspec.Struct, frozen=True, kw_only=True):
    """`at_step`: steps before the task begins, the same in all ranks; None to begin at once."""

    at_step: int | None = None


class TimeWindow(_At, frozen=True, kw_only=True, tag="time-window"):
    """Time `num_steps` steps as a whole, with the device synchronised at both ends.

    Args:
        whole_bursts: whether a window that waits for the loader ends early, after equally many batches of
            each worker.
        times_calls: whether to time each call of an outermost module, or of the function that the user named
            as the step, from its begin until the device is done.
    """

    num_steps: int
    whole_bursts: bool = False
    times_calls: bool = False


class RecordTrace(_At, frozen=True, kw_only=True, tag="record-trace"):
    """Record `num_steps` steps with torch's profiler, which needs one more step before to get ready.

    `stacks`, `shapes`, `memory`: whether to record Python's frames, the shapes of inputs, and allocations.
    `most_s`: seconds after which no further step is recorded, since recording can make steps many times as
        long.
    """

    num_steps: int
    most_s: float = MOST_RECORDED_S
    stacks: bool = False
    shapes: bool = False
    memory: bool = False


class IsolateLoader(_At, frozen=True, kw_only=True, tag="isolate-loader"):
    """Drain the loader, then replay one of its batches for `num_steps` steps or more.

    `page_cache`: "cold" to drop the files' pages before the loader is drained.
    """

    num_steps: int
    page_cache: PageCache = "warm"


class SwitchArms(_At, frozen=True, kw_only=True, tag="switch-arms"):
    """Compare arms with the unchanged program by switching settings within the process.

    Args:
        arms: the settings of each.
        num_blocks: number of blocks per arm: two runs of steps with and two without the arm, in the order
            ABBA or BAAB.
        stretch_steps: fewest steps in each of a block's four runs of steps.
        seed: random seed for the order within each block, and for the order of the arms.
        step_s: seconds of a step of the baseline, if known.
        waits: share of their time for which steps wait for the loader. Its workers make batches at the same
            time, so batches come in bursts; above a share of 5%, each run of steps has equally many batches
            of each worker.
        num_results: number of calls per arm whose results are compared with results of these calls without
            the arm.
        rounding: relative rounding error that the arms may cause; a copy of the module with this error is
            called, too.
        give_up_slow: whether an arm whose steps take far longer gets no more blocks.
        caches: variables that name the compilers' cache folders; set before an arm compiles for the first
            time.
    """

    arms: list[list[PlannedSetting]]
    num_blocks: int
    stretch_steps: int
    seed: int = 0
    step_s: float = 0.0
    waits: float = 0.0
    num_results: int = 0
    rounding: float = 0.0
    give_up_slow: bool = False
    caches: dict[str, str] = {}


class CheckResults(_At, frozen=True, kw_only=True, tag="check-results"):
    """Record the program's results from its first step on: losses, or digests of outputs if nothing is
    trained.

    Args:
        num_values: number of losses, or of calls.
        other_draws: kinds of devices (`cpu`, `cuda`) whose generators get another seed at the first call of
            an outermost module.
        nudge: relative change, up or down, of each weight of an outermost module before its first call, and
            of each innermost module's output, which simulates rounding.
        reference: `float64` or `float32`: outermost modules and their inputs get this type, and autocast is
            off.
        metric: `module:function` that gets an output and the module's inputs, and returns one or more
            numbers.
        still: whether to switch off dropout, and to record the outputs of all inner modules in the first
            call.
    """

    num_values: int
    other_draws: list[str] = []
    nudge: float = 0.0
    reference: Literal["", "float64", "float32"] = ""
    still: bool = False
    metric: str = ""


class RecordMemory(_At, frozen=True, kw_only=True, tag="record-memory"):
    """Record the caching allocator for `num_steps` steps, and the owner of each block."""

    num_steps: int


class RecordHistory(_At, frozen=True, kw_only=True, tag="record-history"):
    """Record the caching allocator from the device's first use to the given step; only as a task of the
    plan."""


class RecordShapes(_At, frozen=True, kw_only=True, tag="record-shapes"):
    """Count the input shapes of outermost modules, for `num_calls` calls or for `most_s` seconds from the
    first one.

    `onnx`: then export the largest module to `model.onnx` in the run folder.
    """

    num_calls: int
    most_s: float
    onnx: bool = False


class CountObjects(_At, frozen=True, kw_only=True, tag="count-objects"):
    """Count Python's objects by type, now and after `num_steps` steps."""

    num_steps: int


class AlignSteps(_At, frozen=True, kw_only=True, tag="align-steps"):
    """Give the same number to the same step of all ranks, in a program that was joined while it ran.

    `skip`: the first steps that a process leaves out of its count, by process id; none for others.
    """

    skip: dict[str, int]


Task = (
    TimeWindow
    | RecordTrace
    | IsolateLoader
    | SwitchArms
    | CheckResults
    | RecordMemory
    | RecordHistory
    | RecordShapes
    | CountObjects
    | AlignSteps
)


class TaskFile(msgspec.Struct, frozen=True, kw_only=True):
    """File `task-NNN.json` in the run folder: a task that is requested while the program runs."""

    schema: str = "dynotune.task/1"
    task: Task
