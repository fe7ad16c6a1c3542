"""Events of a process: how it began, what it is and has, and how it ended."""

from __future__ import annotations

from typing import Annotated

import msgspec

from dynotune.schema.cycle import CycleEvent, CyclePart
from dynotune.schema.program_options import OptionParser, ProgramOption
from dynotune.schema.run import EnvironmentChange, Readback

Int = Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    pass


class ProcessBegun(_Event, frozen=True, kw_only=True, tag="process"):
    """A Python process of the command began, or replaced itself by another program.

    `python`: its version. `rank`, `world_size`: from the environment; None if the environment does not have
        them. `late`: whether the agent came to a program that ran already.
    """

    pid: Int | None = None
    ppid: Int | None = None
    argv: list[str] = []
    executable: str = ""
    python: str = ""
    rank: Int | None = None
    world_size: Int | None = None
    late: bool = False


class AgentLeft(_Event, frozen=True, kw_only=True, tag="left"):
    """The agent has left a program that goes on. `stay`: covers that the program itself has covered since."""

    stay: list[str] = []


class TorchImported(_Event, frozen=True, kw_only=True, tag="torch"):
    """torch was imported at `time_s` (CLOCK_MONOTONIC). `cuda`: version of CUDA that torch was built with, or
    None."""

    version: str
    cuda: str | None = None
    time_s: float | None = None


class EnvironmentChanged(EnvironmentChange, frozen=True, tag_field="event", tag="environment"):
    """The program was about to change a watched environment variable."""


class CompilationBegun(_Event, frozen=True, kw_only=True, tag="compiles"):
    """torch.compile began to compile for the first time."""


class CycleFound(_Event, frozen=True, kw_only=True, tag="cycle"):
    """A step was found: the shortest repeating cycle of draws, calls and updates.

    Args:
        parts: the cycle's first parts; empty if the program marks its steps; None in older records.
        num_parts: number of all parts.
        kinds: kinds of the cycle's events in order of their first occurrence; empty if the program marks its
            steps; None in older records.
        begin_s: begin of the first step (s, CLOCK_MONOTONIC).
        num_steps: number of steps that had ended when the cycle was found.
        num_superseded: number of steps recorded before that turned out to be no steps.
        call_samples: number of samples of a step without a loader, by the leading dimension of its outermost
            module's inputs; None if that varies from step to step.
        stacks_by: number of the signal on which the program writes its threads' stacks; None if it writes
            none.
        rank, world_size: from the process group; None without one.
    """

    parts: list[CyclePart] | None = None
    num_parts: Count = 0
    kinds: list[CycleEvent] | None = None
    begin_s: float | None = None
    num_steps: Count = 0
    num_superseded: Count | None = None
    call_samples: Count | None = None
    stacks_by: Int | None = None
    rank: Int | None = None
    world_size: Int | None = None


class OptionsParsed(_Event, frozen=True, kw_only=True, tag="options"):
    """The program parsed its command line. Each option's own `parser` is left out, since all have this
    one."""

    parser: OptionParser
    options: list[ProgramOption] = []


class TrainerMade(_Event, frozen=True, kw_only=True, tag="trainer"):
    """The program made a trainer of a library. `place`: the user's line, as `file:line`."""

    name: str
    place: str = ""


class MemoryPeaks(_Event, frozen=True, kw_only=True, tag="memory"):
    """Peaks of memory so far, in bytes.

    `peak_device_bytes`: sum of the allocator's peaks over all devices. `num_devices`: number of devices on
    which the process allocated memory. Both are None if CUDA has not started.
    """

    peak_rss_bytes: Int | None = None
    peak_device_bytes: Int | None = None
    num_devices: Int | None = None


class SettingsReadBack(_Event, frozen=True, kw_only=True, tag="readback"):
    """The state of each setting of the run.

    `already`: knobs of another arm's settings that the process has of its own accord.
    """

    settings: list[Readback] = []
    already: list[str] = []


class SettingPutBack(_Event, frozen=True, kw_only=True, tag="setting_put_back"):
    """The program had changed a setting to the value `found`, as text, and the agent set it again."""

    knob: str
    found: str


class OutOfMemory(_Event, frozen=True, kw_only=True, tag="out_of_memory"):
    """A failed allocation ended the process. `message`: torch's. `held`: bytes of live device tensors by
    use."""

    message: str
    held: dict[str, Int] = {}


class AgentError(_Event, frozen=True, kw_only=True, tag="error"):
    """An error of the agent itself, hidden from the program. `where`: the part of the agent that failed."""

    where: str
    error: str


class ProcessExited(_Event, frozen=True, kw_only=True, tag="exit"):
    """The interpreter ended normally.

    `num_events`: number of draws, calls and updates, among which steps are found. `at_s`: when the program's
    exit handlers had run (CLOCK_MONOTONIC); None in older records.
    """

    num_events: Count = 0
    at_s: float | None = None


class NotModelled(_Event, frozen=True, kw_only=True, tag="not_modelled"):
    """The pretended device cannot do what the program asked for, so the program gets an exception with this
    reason."""

    reason: str
