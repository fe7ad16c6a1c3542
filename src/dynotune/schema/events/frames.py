"""Events of a process that serves streams: which frames are done, and when."""

from __future__ import annotations

from typing import Literal

import msgspec

from dynotune.schema.events.process import Count, Int

FrameSource = Literal["marked", "call"]


class FramesDone(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="frames"):
    """Frames since the event before, in the order in which they were done; the lists have one entry a frame.

    Args:
        source: "marked" by `dynotune.frame_done`, or a "call" of an outermost module.
        streams, models: names; a stream of calls is a thread. `stream`, `model`: the number of each frame's.
        pooled: numbers of streams that are threads of a pool, which work for whoever asks.
        begin_s, end_s: when the frame was captured, or its call began, and when it was done (s,
            CLOCK_MONOTONIC).
        begin_cpu_s, end_cpu_s: CPU time of the calling thread so far at these times; [] for marked frames.
        num_samples: samples of a call; None if they cannot be counted.
        process_cpu_s: CPU time of the process so far, when the event was written.
        peak_device_bytes: peak of the allocators so far; None if CUDA has not started.
        num_models: outermost models that the process has called so far, also those that are gone.
        weights_bytes: bytes of parameters and buffers of all models that were called so far.
        num_lost: frames of the process that were counted and not recorded.
    """

    source: FrameSource
    streams: list[str]
    models: list[str] = []
    pooled: list[Count] = []
    stream: list[Count]
    model: list[Count] = []
    begin_s: list[float]
    end_s: list[float]
    begin_cpu_s: list[float] = []
    end_cpu_s: list[float] = []
    num_samples: list[Int | None] = []
    process_cpu_s: float | None = None
    weights_bytes: Count = 0
    num_models: Count = 0
    peak_device_bytes: Int | None = None
    num_lost: Count = 0
