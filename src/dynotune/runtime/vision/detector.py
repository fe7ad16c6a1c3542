"""Detect objects with YOLO-shaped models: letterbox, forward and suppression on the device, without waits."""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import nn

from dynotune.runtime import streams
from dynotune.runtime.errors import InputError
from dynotune.runtime.lifetime import Closing, Lifetime
from dynotune.runtime.vision import pipeline
from dynotune.runtime.vision.frames import Frame, consecutive
from dynotune.runtime.vision.network import checked_model
from dynotune.runtime.vision.options import EngineOptions, Options, PostOptions
from dynotune.runtime.vision.serve import Drop, Served, Server, SourceStats
from dynotune.runtime.vision.stages import Detections, Lanes, UnderWay

__all__ = ["Detections", "Detector", "DetectorStats", "Served", "Server", "SourceStats"]


@dataclass(frozen=True, slots=True)
class DetectorStats:
    """Totals of a detector.

    Args:
        num_frames, num_batches: numbers of frames and batches whose results the caller received.
        num_candidates: number of boxes above `conf`; `num_cut` of these boxes were beyond `top_k`.
        num_unsettled: batches whose suppression needed more rounds than the graph has, and got these rounds.
        num_lanes: number of buffer sets, one per batch under way.
        engines: `Engine.stats()` of each input size that was built, such as "16x384x640".
        num_uploads, num_uploaded_bytes: number of uploads, and the bytes of the rows that were uploaded.
        pinned_bytes: bytes of pinned memory for frames.
    """

    num_frames: int
    num_batches: int
    num_candidates: int
    num_cut: int
    num_unsettled: int
    num_uploads: int
    num_uploaded_bytes: int
    num_lanes: int
    pinned_bytes: int
    engines: dict[str, Any]


class Detector(Closing):
    """Detects objects in frames with a YOLO model whose output is `[B, 4 + num_classes, N]` (v8, 11) or
    end-to-end `[B, N, 6]` (26).

    On a GPU batches take streams in turn, which work side by side. All that happens to frames of one size,
    from their upload to the copy of the results, is one captured graph. So the host launches it once per
    batch and waits once, for the results. Each input size is built (checked, compiled, captured) at its first
    use, or ahead of time by `prepare`. Thread-safe.

    Args:
        model: a model in evaluation mode that takes RGB images `[B, 3, H, W]` with values 0 to 1.
        imgsz: the longest side of the input, or (height, width); multiples of `stride`.
        conf: score threshold; boxes with this score or less are dropped.
        iou: overlap threshold; boxes that overlap a better box of the same class by more are dropped.
        max_det: largest number of detections per frame.
        batch: number of frames per forward pass; of several sizes, the smallest that holds the frames is
            used.
        dtype: dtype of the forward pass; None is the model's own dtype.
        channels_last, compile, graphs, tolerance: arguments for the `Engine` of forward and suppression.
            Suppression is never compiled, so `fullgraph` is not available.
        device: device to work on; None is the model's device.
        rect: pad frames only to multiples of `stride`. If false, every frame is padded to `imgsz`, so that
            frames of all sizes fit into the same batch.
        stride: stride of the model, in pixels.
        top_k: number of best candidates per frame that take part in suppression.
        agnostic: let boxes of different classes suppress each other, too.
        end_to_end: whether the model's output is end-to-end; None infers this from the output's shape.
        color: order of the frames' colours; OpenCV gives "bgr".
        max_frame: (height, width) of the largest frame; larger ones are refused.
        depth: number of batches under way that `prepare` makes room for, each with pinned memory, and as much
            device memory, for the rows of its frames that are read: 33 MB for 16 frames of 1080p.
        tracks: number of forward passes that may run at the same time on a GPU. Each has memory for the
            activations of the largest batch. One pass after the other leaves a large GPU idle between small
            kernels.

    Raises:
        InputError: if an argument or the model cannot be used.
        NumericsError: if weights or results are not finite, or the built engine's results differ.
        DeviceError: if the device is not available.
    """

    def __init__(
        self,
        model: nn.Module,
        imgsz: int | tuple[int, int] = 640,
        conf: float = 0.25,
        iou: float = 0.7,
        max_det: int = 300,
        batch: int | Sequence[int] = 1,
        *,
        dtype: torch.dtype | None = None,
        channels_last: bool = False,
        compile: Any = None,
        graphs: bool = True,
        tolerance: float | None = None,
        device: torch.device | str | int | None = None,
        rect: bool = True,
        stride: int = 32,
        top_k: int = 1024,
        agnostic: bool = False,
        end_to_end: bool | None = None,
        color: Literal["bgr", "rgb"] = "bgr",
        max_frame: tuple[int, int] = (1080, 1920),
        depth: int = 4,
        tracks: int = 2,
    ) -> None:
        own_device, own_dtype = checked_model(model)
        shape = (imgsz, imgsz) if isinstance(imgsz, int) else imgsz
        sizes = tuple(sorted({batch} if isinstance(batch, int) else set(batch)))
        options = Options(
            imgsz=shape,
            sizes=sizes,
            dtype=own_dtype if dtype is None else dtype,
            channels_last=channels_last,
            graphs=graphs,
            rect=rect,
            stride=stride,
            color=color,
            max_frame=max_frame,
            depth=depth,
            tracks=tracks,
            end_to_end=end_to_end,
            engine=EngineOptions(compile, tolerance),
            post=PostOptions(conf, iou, max_det, top_k, agnostic),
        )
        options.check()
        self._lifetime = Lifetime("Detector")
        device_streams = streams.of(own_device if device is None else device)
        self._lanes = Lanes(model, device_streams, options, self._lifetime)

    @property
    def device(self) -> torch.device:
        """Return the device that does the work."""
        return self._lanes.device_streams.device

    def prepare(self, *frame_sizes: tuple[int, int]) -> None:
        """Build engines for frames of these sizes (height, width) and every batch size, before the first
        frame arrives.

        Raises: as the constructor; InputError, TooLargeError for a size.
        """
        self._lifetime.check()
        # The largest first: memory that grows takes the graphs that read it along.
        for size in sorted(frame_sizes, key=math.prod, reverse=True):
            self._lanes.prepare(size)

    def predict(self, frames: Frame | Sequence[Frame]) -> list[Detections]:
        """Return the detections of each frame, in the given order.

        Args:
            frames: one frame or a sequence of them, of any sizes: uint8 `[height, width, 3]`, numpy arrays or
                tensors on the host, or tensors on the detector's device that are valid on the current stream.

        Returns:
            One `Detections` per frame, on the host, in pixels of the frame.

        Raises:
            InputError, TooLargeError: if a frame is unusable; none was processed.
            NumericsError: if the output is not finite.
            ClosedError, ForkedError: used after close, or in a forked child.
        """
        self._lifetime.check()
        # An array has a shape; a sequence of frames has not.
        listed = [frames] if hasattr(frames, "shape") else list(frames)
        alike: dict[tuple[int, int], list[int]] = {}
        for number, frame in enumerate(listed):
            alike.setdefault(self._lanes.key(frame, f"Frame {number}"), []).append(number)
        largest = self._lanes.options.largest
        parts = [group[at : at + largest] for group in alike.values() for at in range(0, len(group), largest)]
        results: dict[int, Detections] = {}
        under_way: deque[tuple[UnderWay, list[int]]] = deque()
        try:
            for part in parts:
                batch = self._lanes.stage([listed[number] for number in part], spins=True)
                under_way.append((self._lanes.launch(batch), part))
                # While the host waits for one batch, the device already has the next.
                if len(under_way) > 1:
                    self._take(results, under_way)
            while under_way:
                self._take(results, under_way)
        finally:
            for batch, _ in under_way:
                self._lanes.discard(batch)
        return [results[number] for number in range(len(listed))]

    def _take(self, results: dict[int, Detections], under_way: deque[tuple[UnderWay, list[int]]]) -> None:
        batch, numbers = under_way.popleft()
        results.update(zip(numbers, self._lanes.collect(batch), strict=True))

    def stream(self, source: Iterable[Frame], depth: int = 3) -> Iterator[Detections]:
        """Yield the detections of a source's frames, in order, while further frames are read, uploaded and
        computed.

        Args:
            source: frames as in `predict`. The source is read in another thread, and each frame must be an
                array of its own (as from OpenCV's `read()`); a frame on the device must be complete. With
                `batch` above 1 a result waits until a batch is full, the frame size changes or the source
                ends: use `serve` for live sources.
            depth: number of batches under way at once.

        Yields:
            One `Detections` per frame. Dropping or closing the iterator stops reading, without waiting for
            the source.

        Raises:
            SourceError: if the source raised; after the results of all earlier frames.
            InputError, TooLargeError: if the source gave an unusable frame; after the results of all earlier
                frames.
            NumericsError: the model's output is not finite.
        """
        self._lifetime.check()
        if depth < 1:
            raise InputError(f"depth is {depth}; at least one batch has to be on its way.")
        return self._stream(source, depth)

    def _stream(self, source: Iterable[Frame], depth: int) -> Iterator[Detections]:
        batches = consecutive(source, self._lanes.key, self._lanes.options.largest)
        under_way = pipeline.run(self._lanes, batches, depth)
        try:
            for results, _ in under_way:
                yield from results
        finally:
            under_way.close()

    def serve(
        self, sources: Mapping[str, Iterable[Frame]] | Sequence[Iterable[Frame]], max_wait_s: float = 0.01,
        max_batch: int | None = None, drop: Drop = "never", *, queue: int = 4,
        depth: int = 3,
    ) -> Server:  # fmt: skip
        """Return the detections of many sources at once; each batch takes the frames that are waiting.

        Each source is read in its own thread. Order is kept within a source. A source that stalls delays no
        other; a source that raises ends alone.

        Args:
            sources: a mapping of names to sources, or a sequence, whose names are numbers. Frames are as in
                `stream`.
            max_wait_s: how long the oldest frame waits for other frames to fill its batch. A batch does not
                wait if no source can add to it, because all queues with frames of its size are full.
            max_batch: largest number of frames per batch; None is the largest of `batch`.
            drop: policy if a source's queue is full: "never" makes the source wait, "oldest" drops the frame
                that has waited longest, "newest" drops the frame that just arrived. Every dropped frame is
                counted.
            queue: number of frames per source that may wait.
            depth: number of batches under way at once.

        Returns:
            A `Server`: iterate over it for `Served` results; close it, or use it in a `with` statement, to
            end.

        Raises:
            InputError: if an argument does not make sense. ClosedError, ForkedError: as for `predict`.
        """
        self._lifetime.check()
        largest = self._lanes.options.largest
        if max_batch is not None and not 1 <= max_batch <= largest:
            raise InputError(
                f"max_batch is {max_batch}; this detector takes 1 to {largest} frames a batch.",
                hint="Give the detector a larger `batch`, or several: batch=(1, 4, 16).",
            )
        return Server(
            self._lanes,
            sources,
            max_wait_s=max_wait_s,
            max_batch=max_batch or largest,
            drop=drop,
            queue=queue,
            depth=depth,
        )

    def stats(self) -> DetectorStats:
        """Return totals so far; also after `close()`."""
        networks = self._lanes.networks
        return DetectorStats(
            **asdict(self._lanes.counts),
            num_lanes=sum(network.num_lanes for network in networks.values()),
            engines={name: network.engine.stats() for name, network in networks.items()},
            pinned_bytes=sum(network.pinned_bytes for network in networks.values()),
        )

    def close(self) -> None:
        """Wait for work under way, then free graphs, buffers and pinned memory. Results stay valid."""
        if self._lifetime.close():
            self._lanes.close()
