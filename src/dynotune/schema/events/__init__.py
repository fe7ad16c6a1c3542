"""Events that the agent writes into a process's record, one struct for each kind.

The agent imports nothing of this package, so a test holds what it writes against these structs. A struct
ignores fields that it does not have, and has defaults for fields that older agents did not write.
"""

from typing import get_args

import msgspec

from dynotune.schema import document
from dynotune.schema.events.arms import (
    ArmGivenUp,
    ArmResults,
    ArmsCompared,
    ArmSwitched,
    Block,
    Stretch,
    unit_s,
)
from dynotune.schema.events.batches import BatchesFetched, BatchesPinned
from dynotune.schema.events.frames import FramesDone
from dynotune.schema.events.process import (
    AgentError,
    AgentLeft,
    CompilationBegun,
    CycleFound,
    EnvironmentChanged,
    MemoryPeaks,
    NotModelled,
    OptionsParsed,
    OutOfMemory,
    ProcessBegun,
    ProcessExited,
    SettingPutBack,
    SettingsReadBack,
    TorchImported,
    TrainerMade,
)
from dynotune.schema.events.start import (
    CompilerCounted,
    ProcessCreated,
    RootMet,
    SamplingEnded,
    StacksSampled,
    StartCovered,
    StartSpan,
)
from dynotune.schema.events.state import Moments, StateRead
from dynotune.schema.events.tasks import (
    AllocationsRecorded,
    BatchReplay,
    Digest,
    GivenUp,
    HistoryRecorded,
    LoaderDrain,
    LoaderIsolated,
    ObjectsCounted,
    OnnxExported,
    PageCacheDrop,
    ResultsRead,
    ShapesCounted,
    StepsAligned,
    TraceRecorded,
    Window,
)

TaskResult = (
    Window
    | TraceRecorded
    | LoaderIsolated
    | ArmsCompared
    | ResultsRead
    | AllocationsRecorded
    | HistoryRecorded
    | ShapesCounted
    | ObjectsCounted
    | StepsAligned
    | GivenUp
)
"""What a process reports about a task."""

Event = (
    TaskResult
    | AgentError
    | AgentLeft
    | ArmGivenUp
    | ArmResults
    | ArmSwitched
    | BatchesFetched
    | BatchesPinned
    | Block
    | CompilationBegun
    | CompilerCounted
    | CycleFound
    | EnvironmentChanged
    | FramesDone
    | MemoryPeaks
    | NotModelled
    | OptionsParsed
    | OutOfMemory
    | ProcessBegun
    | ProcessCreated
    | ProcessExited
    | RootMet
    | SettingPutBack
    | SettingsReadBack
    | StacksSampled
    | SamplingEnded
    | StartCovered
    | StartSpan
    | StateRead
    | TorchImported
    | TrainerMade
)
"""Any event of a record."""

KINDS: dict[str, type[Event]] = {str(kind.__struct_config__.tag): kind for kind in get_args(Event)}
"""Struct of each kind of event, by the name that the agent writes in the field `event`."""


class _Head(msgspec.Struct):
    event: str


def kind_of(raw: bytes) -> type[Event] | None:
    """Return the struct for an event that the agent wrote as JSON; None for a kind that this dynotune does
    not know.

    Raises ValueError: this is no event in JSON.
    """
    return KINDS.get(document.parse(raw, _Head).event)


__all__ = [
    "KINDS",
    "AgentError",
    "AgentLeft",
    "AllocationsRecorded",
    "ArmGivenUp",
    "ArmResults",
    "ArmSwitched",
    "ArmsCompared",
    "BatchReplay",
    "BatchesFetched",
    "BatchesPinned",
    "Block",
    "CompilationBegun",
    "CompilerCounted",
    "CycleFound",
    "Digest",
    "EnvironmentChanged",
    "Event",
    "FramesDone",
    "GivenUp",
    "HistoryRecorded",
    "LoaderDrain",
    "LoaderIsolated",
    "MemoryPeaks",
    "Moments",
    "NotModelled",
    "ObjectsCounted",
    "OnnxExported",
    "OptionsParsed",
    "OutOfMemory",
    "PageCacheDrop",
    "ProcessBegun",
    "ProcessCreated",
    "ProcessExited",
    "ResultsRead",
    "RootMet",
    "SamplingEnded",
    "SettingPutBack",
    "SettingsReadBack",
    "ShapesCounted",
    "StacksSampled",
    "StartCovered",
    "StartSpan",
    "StateRead",
    "StepsAligned",
    "Stretch",
    "TaskResult",
    "TorchImported",
    "TraceRecorded",
    "TrainerMade",
    "Window",
    "kind_of",
    "unit_s",
]
