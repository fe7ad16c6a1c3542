"""Document on what the whole time of a run went to, in one table that sums to the wall clock."""

from typing import Annotated, Literal

import msgspec

from dynotune.schema.facts import Unknown

Seconds = Annotated[float, msgspec.Meta(ge=0)]
RunPart = Literal["start", "steps", "between", "end", "unexplained"]
PARTS: dict[RunPart, str] = {
    "start": "start",
    "steps": "steps",
    "between": "between steps",
    "end": "after the last step",
    "unexplained": "unexplained",
}
"""Parts of a run in order of time, each with its label. The start ends with the first step."""
Activity = Literal[
    "launcher",
    "interpreter",
    "agent",
    "imports",
    "library_load",
    "cuda_start",
    "model_build",
    "weights",
    "to_device",
    "process_group",
    "data_set",
    "download",
    "dynamo",
    "inductor",
    "triton",
    "autotuning",
    "graph_capture",
    "first_batch",
    "first_step",
    "model_run",
    "loader",
    "forward",
    "backward",
    "optimizer",
    "communication",
    "device_wait",
    "own",
    "epoch_start",
    "validation",
    "saving",
    "logging",
    "waiting",
    "other_commands",
    "process_end",
    "unexplained",
]
ACTIVITIES: dict[Activity, str] = {
    "launcher": "launching",
    "interpreter": "interpreter and site",
    "agent": "dynotune's agent",
    "imports": "imports",
    "library_load": "loading of libraries",
    "cuda_start": "CUDA context",
    "model_build": "model build",
    "weights": "reading of weights",
    "to_device": "model to its device",
    "process_group": "process group",
    "data_set": "data set and tokenizer",
    "download": "downloads",
    "dynamo": "compile: Dynamo",
    "inductor": "compile: Inductor",
    "triton": "compile: Triton",
    "autotuning": "compile: autotuning",
    "graph_capture": "capture of CUDA graphs",
    "first_batch": "first batch",
    "first_step": "first step",
    "model_run": "model run outside steps",
    "loader": "waits for batches",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "communication": "communication",
    "device_wait": "waits for the device",
    "own": "the program's own lines",
    "epoch_start": "starts of epochs",
    "validation": "validation",
    "saving": "saving",
    "logging": "logging",
    "waiting": "waits for other processes or threads",
    "other_commands": "other commands",
    "process_end": "end of the process",
    "unexplained": "unexplained",
}
"""Labels of activities. Within a part, rows stand in the order of their time."""


class AccountDetail(msgspec.Struct, frozen=True):
    """A part of a row: a package that is imported, or a place in the program, as `Place.function`.

    `text`: the place's source line.
    """

    name: str
    took_s: Seconds
    text: str = ""


class AccountRow(msgspec.Struct, frozen=True):
    """What one activity took in one part of the run, and the largest parts of that.

    Rows of one part differ in `activity`. Each moment of the run belongs to exactly one row.
    """

    part: RunPart
    activity: Activity
    took_s: Seconds
    details: list[AccountDetail] = []


class SavedTime(msgspec.Struct, frozen=True):
    """What a proved setting of the run saves, by its recipe.

    Args:
        setting: as text.
        speedup, ci: as the recipe states them.
        per_thousand_steps_s, per_epoch_s: seconds that 1,000 steps, or an epoch, would take more without the
            setting; Unknown if the recipe's proof is of energy.
        per_thousand_steps_j: energy of the GPUs that 1,000 steps would take more without it; Unknown if the
            proof is of time.
    """

    setting: str
    speedup: float
    ci: tuple[float, float]
    per_thousand_steps_s: float | Unknown
    per_epoch_s: float | Unknown = Unknown("the run had fewer than two epochs")
    per_thousand_steps_j: float | Unknown = Unknown("the recipe's proof is of time")


class RunAccount(msgspec.Struct, frozen=True, kw_only=True, tag="account"):
    """Document `account.json` in the run folder.

    Args:
        wall_s: seconds from the launch to the end of the command; the rows sum to it.
        pid: the process whose main thread is accounted for: the one that ran most steps, of several ranks the
            first.
        is_whole: whether the account covers the run up to the command's end; a diagnosis ends before.
        step: description of a step; "" if no step was found.
        num_steps, num_epochs: of that process; `num_epochs` is 0 if no loader was started in steps.
        per_thousand_steps_s: seconds of 1,000 steps with all that lies between them; None with fewer than two
            steps.
        per_epoch_s: mean seconds from one start of an epoch to the next; None with fewer than two epochs.
        energy_j: energy of the GPUs that the command may use, from the launch to the end.
        per_thousand_steps_j, per_epoch_j: energy of that much of the run, in proportion to its time.
        saved: what each setting of the recipe saves.
        unexplained_stack: the stack that was seen most in unexplained time, the outermost frame first.
        notes: what makes the account less certain.
    """

    schema: str = "dynotune.account/1"
    id: str = ""
    command: list[str]
    wall_s: Seconds
    exit_code: int | None = None
    pid: int = 0
    num_processes: int = 0
    is_whole: bool = True
    rows: list[AccountRow] = []
    step: str = ""
    num_steps: int = 0
    num_epochs: int = 0
    per_thousand_steps_s: Seconds | None = None
    per_epoch_s: Seconds | None = None
    energy_j: float | Unknown = Unknown("it was not asked for")
    per_thousand_steps_j: float | Unknown = Unknown("it was not asked for")
    per_epoch_j: float | Unknown = Unknown("it was not asked for")
    saved: list[SavedTime] = []
    unexplained_stack: list[str] = []
    notes: list[str] = []

    def part_s(self, part: RunPart) -> float:
        """Return the seconds of a part of the run."""
        return sum(row.took_s for row in self.rows if row.part == part)
