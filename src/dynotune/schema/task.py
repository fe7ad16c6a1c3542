"""What a live run can be asked to do between two steps: the tasks, and the file that orders one."""

from typing import Literal

import msgspec

PageCache = Literal["warm", "cold"]


class PlannedSetting(msgspec.Struct, frozen=True):
    """A setting as the agent needs it: its site in plain data. `keep`: put it back when the program changes it."""

    knob: str
    value: bool | int | float | str
    site: dict[str, str | list[str] | dict[str, list[str]]]
    keep: bool = True


class _At(msgspec.Struct, frozen=True, kw_only=True):
    """`at_step`: steps before the task begins, the same in all ranks; None to begin at once."""

    at_step: int | None = None


class TimeWindow(_At, frozen=True, kw_only=True, tag="time-window"):
    """Time `num_steps` steps as a whole, the device synchronised at both ends."""

    num_steps: int


class RecordTrace(_At, frozen=True, kw_only=True, tag="record-trace"):
    """Record `num_steps` steps with torch's profiler; it takes one more step to get ready.

    `stacks`, `shapes`, `memory`: Python's frames, the shapes of inputs, what is allocated.
    """

    num_steps: int
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
    """Compare arms with the program as it runs, switched within the process.

    Args:
        arms: the settings of each.
        num_blocks: of each arm: two stretches of steps with it and two without, in the order ABBA or BAAB.
        stretch_steps: steps of each stretch.
        seed: draws these orders, and in which order the arms take their turns.
        step_s: what a step of the baseline takes, as far as it is known.
        num_results: calls of each arm whose results are compared with those of the same calls without it.
        rounding: share by which the arms may round a number; a copy of the module that rounds so is called as well.
        give_up_slow: an arm with which steps take far longer has no more blocks.
        caches: variables that say where compilers keep what they make; set before an arm compiles for the first time.
    """

    arms: list[list[PlannedSetting]]
    num_blocks: int
    stretch_steps: int
    seed: int = 0
    step_s: float = 0.0
    num_results: int = 0
    rounding: float = 0.0
    give_up_slow: bool = False
    caches: dict[str, str] = {}


class CheckResults(_At, frozen=True, kw_only=True, tag="check-results"):
    """Note the program's results from its first step on: losses, or digests of outputs where nothing is trained.

    Args:
        num_values: losses, or calls.
        other_draws: kinds of devices (`cpu`, `cuda`) whose generators get another seed at the first call of an
            outermost module.
        nudge: share by which each weight of an outermost module is changed, up or down, before its first call, and what
            each innermost module gives, as if it were rounded.
        reference: outermost modules and their inputs are made `float64` or `float32`, and autocast does nothing.
        metric: `module:function` that is given an output and what the module was given, and returns one number or more.
        still: dropout is off, and what each module inside the first one gives in its first call is noted.
    """

    num_values: int
    other_draws: list[str] = []
    nudge: float = 0.0
    reference: Literal["", "float64", "float32"] = ""
    still: bool = False
    metric: str = ""


class RecordMemory(_At, frozen=True, kw_only=True, tag="record-memory"):
    """Record what the caching allocator does within `num_steps` steps, and whose each block is."""

    num_steps: int


class RecordHistory(_At, frozen=True, kw_only=True, tag="record-history"):
    """Record what the caching allocator does from the device's first use to the step; only as a task of the plan."""


class RecordShapes(_At, frozen=True, kw_only=True, tag="record-shapes"):
    """Count the shapes that outermost modules get, for `num_calls` calls or `most_s` from the first one on.

    `onnx`: then export the largest one to `model.onnx` in the run folder.
    """

    num_calls: int
    most_s: float
    onnx: bool = False


Task = (
    TimeWindow | RecordTrace | IsolateLoader | SwitchArms | CheckResults | RecordMemory | RecordHistory | RecordShapes
)


class TaskFile(msgspec.Struct, frozen=True, kw_only=True):
    """File `task-NNN.json` in the run folder: a task ordered while the program runs."""

    schema: str = "dynotune.task/1"
    task: Task
