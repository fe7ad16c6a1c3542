"""Results of tasks: one event for each process that a task concerns.

Each has `task`, the task's number (negative for a task of the plan), and `done_s`, the time at which it was
done (s, CLOCK_MONOTONIC).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from dynotune.schema.engine_plan import ShapeHistogram
from dynotune.schema.events.process import Int
from dynotune.schema.observation import GrownObjects
from dynotune.schema.reasons import Reason
from dynotune.schema.run import TimedWindow, TraceRecording


class _Result(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    task: Int | None = None
    done_s: float | None = None


class Window(TimedWindow, frozen=True, kw_only=True, tag_field="event", tag="window"):
    """A window of steps was timed. `call_s`: seconds of each call in it, if the task asked for calls."""

    call_s: list[float] = msgspec.field(default_factory=list)
    task: Int | None = None
    done_s: float | None = None
    rank: Int | None = None
    world_size: Int = 1


class TraceRecorded(TraceRecording, frozen=True, kw_only=True, tag_field="event", tag="trace"):
    """A trace was recorded. `step_s`: seconds of each recorded step."""

    task: Int | None = None
    done_s: float | None = None
    step_s: list[float] = msgspec.field(default_factory=list)


class GivenUp(_Result, frozen=True, kw_only=True, tag="given_up"):
    """A task was given up.

    Args:
        kind: the event that the result would have been, or the type of a task that was refused.
        code: why, if anybody acts on the reason.
        reason: the words that the sentence of `code` needs; the whole reason without a code.
        at_exit: whether the program ended before the task was done.
        refused: whether the agent could not read the order.
        notes: cautions for a recording that was not made.
    """

    kind: str = ""
    code: Reason = Reason.OTHER
    reason: str = ""
    at_exit: bool = False
    refused: bool = False
    notes: list[str] = []


class LoaderDrain(msgspec.Struct, frozen=True, kw_only=True):
    """Result of draining a loader: `seconds` for `num_batches`, after `num_skipped` batches that were already
    made.

    Args:
        num_replayed: number of batches that the window's steps drew from this loader.
    """

    num_batches: int
    num_samples: int | None
    seconds: float
    num_skipped: int
    num_workers: int
    whole_epoch: bool
    num_replayed: int


class BatchReplay(msgspec.Struct, frozen=True, kw_only=True):
    """The window in which the same batch was replayed; `begin_s` and `end_s` are of CLOCK_MONOTONIC."""

    first_step: int | None = None
    num_steps: int
    begin_s: float
    end_s: float
    num_samples: int | None


class PageCacheDrop(msgspec.Struct, frozen=True, kw_only=True):
    """Files whose pages were dropped; of `probed_bytes` that were checked, `resident_bytes` were still
    cached."""

    num_files: int
    num_bytes: int
    num_refused: int
    probed_bytes: int
    resident_bytes: int
    complete: bool


class LoaderIsolated(_Result, frozen=True, kw_only=True, tag="isolated"):
    """Loaders were drained, and one of their batches was replayed.

    `changed_in_place`: whether the program changed the replayed batch. `dropped`: None if the page cache
        stayed.
    """

    loaders: list[LoaderDrain] = []
    replayed: BatchReplay | None = None
    changed_in_place: bool = False
    dropped: PageCacheDrop | None = None


class AllocationsRecorded(_Result, frozen=True, kw_only=True, tag="allocations"):
    """A few steps of the caching allocator were recorded, from the step `first_step` on.

    `file`, `owners`: names of the snapshot and of its owners' document in the run folder.
    """

    file: str
    owners: str
    first_step: Int
    pid: Int
    rank: Int | None = None


class HistoryRecorded(_Result, frozen=True, kw_only=True, tag="history"):
    """The caching allocator was recorded from the device's first use. `file`: snapshot's name in the run
    folder."""

    file: str
    pid: Int
    rank: Int | None = None


class OnnxExported(msgspec.Struct, frozen=True, kw_only=True):
    """The export of the largest module: the number of batches beside it, or why it failed."""

    num_batches: int | None = None
    error: str = ""


class ShapesCounted(_Result, frozen=True, kw_only=True, tag="shapes"):
    """The shapes of inputs of outermost modules were counted. `onnx`: None if no module was to be
    exported."""

    modules: list[ShapeHistogram] = []
    onnx: OnnxExported | None = None


class ObjectsCounted(GrownObjects, frozen=True, kw_only=True, tag_field="event", tag="objects"):
    """Python's objects were counted, before and after some steps."""

    task: Int | None = None
    done_s: float | None = None


class StepsAligned(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="aligned"):
    """The process left its first `skipped` steps out of its count."""

    skipped: Int
    task: Int | None = None
    done_s: float | None = None


class Digest(msgspec.Struct, frozen=True):
    """Digest of one output tensor of an outermost module. None represents a value that is not finite.

    Args:
        sum, magnitudes, root: sum of the elements, sum of their magnitudes, and root of the sum of their
            squares.
        sampled: evenly spaced elements.
    """

    shape: list[int]
    sum: float | None = 0.0
    magnitudes: float | None = 0.0
    root: float | None = 0.0
    sampled: list[float | None] = []


class ResultsRead(_Result, frozen=True, kw_only=True, tag="results"):
    """The results that one process computed.

    Args:
        values: losses, or for each call the digests of its outputs, as `what` says; None for a loss that is
            not finite.
        draws: kinds of devices whose random number generators the process's modules used.
        precision: the precision in which the process computes, as far as visible.
        num_captured: number of values that were not read because a CUDA graph was being captured.
        parts: results of inner modules in the outermost module's first call, in the order in which their
            calls ended.
        metric: values of the metric for each call, in order; `metric_error`: why there is no metric.
    """

    what: Literal["losses", "outputs"]
    values: list[float | list[Digest] | None]
    draws: list[str] = []
    precision: str = ""
    num_captured: int = 0
    parts: list[tuple[str, list[Digest]]] = []
    metric: list[float] = []
    metric_error: str = ""
