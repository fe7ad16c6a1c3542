"""Detection with YOLO-shaped models: letterbox, forward and suppression on the device, without waiting in between."""

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
from dynotune.runtime.vision.detections import Detections
from dynotune.runtime.vision.frames import Frame, consecutive
from dynotune.runtime.vision.network import checked_model
from dynotune.runtime.vision.serve import Drop, Served, Server, SourceStats
from dynotune.runtime.vision.stages import Lanes, Options, UnderWay

__all__ = ["Detections", "Detector", "DetectorStats", "Served", "Server", "SourceStats"]


@dataclass(frozen=True, slots=True)
class DetectorStats:
    """Counts of what a detector has done.

    Args:
        num_frames, num_batches: whose results were taken.
        num_candidates: boxes above `conf`; `num_cut` of them stood beyond `top_k`.
        num_unsettled: batches whose suppression needed more rounds than the graph holds, and got them.
        num_lanes: sets of buffers for a batch.
        engines: `Engine.stats()` of each input that was built, such as "16x384x640".
        stager: of the uploads; bytes are those of the rows that were sent, see `Detector`.
    """

    num_frames: int
    num_batches: int
    num_candidates: int
    num_cut: int
    num_unsettled: int
    num_lanes: int
    engines: dict[str, Any]
    stager: Any


class Detector(Closing):
    """Detector of objects in frames with a YOLO model, whose output is `[B, 4 + num_classes, N]` (v8, 11) or
    end-to-end `[B, N, 6]` (26).

    On a GPU two streams work side by side: frames are uploaded and letterboxed on one; forward, suppression and the
    copy of the results run on the other. Each is a captured graph, so that the host launches a handful of things a
    batch, and waits once, for the results. Each input size is built (checked, compiled, captured) when it is first
    needed, or ahead of time by `prepare`. Thread-safe.

    Args:
        model: in evaluation mode; takes RGB `[B, 3, H, W]`, 0 to 1.
        imgsz: the longest side of the input, or (height, width); multiples of `stride`.
        conf: scores must exceed it.
        iou: boxes of a class that overlap a better one by more than this are dropped.
        max_det: detections a frame at most.
        batch: frames a forward; or several such sizes, of which the smallest that holds the frames is used.
        dtype: of the forward; None is the model's own.
        channels_last, compile, graphs, tolerance: for the `Engine` of forward and suppression. Suppression is never
            compiled, and so `fullgraph` cannot be had.
        device: where to work; None is where the model is.
        rect: pad frames to multiples of `stride` only. Without it every frame fills `imgsz`, so that frames of all
            sizes go into the same batch.
        stride: of the model.
        top_k: candidates a frame, the best, that take part in suppression.
        agnostic: boxes of different classes suppress each other too.
        end_to_end: which of the two outputs the model has; None tells them apart by shape.
        color: order of the frames' colours; OpenCV gives "bgr".
        max_frame: (height, width) of the largest frame; pinned memory is made for it.
        depth: uploads on their way at once, of up to eight frames each, and batches that `prepare` makes room for.
            Pinned memory, and as much on the device, is made for so many of the largest frames: 199 MB for 1080p with a
            batch of 16, 25 MB with a batch of 1.

    Raises:
        InputError: an argument or the model cannot be used. NumericsError: its weights or results are not finite, or
        the built engine's results differ. DeviceError: the device is not there.
    """

    def __init__(
        self, model: nn.Module, imgsz: int | tuple[int, int] = 640, conf: float = 0.25, iou: float = 0.7,
        max_det: int = 300, batch: int | Sequence[int] = 1, *, dtype: torch.dtype | None = None,
        channels_last: bool = False, compile: Any = None, graphs: bool = True, tolerance: float | None = None,
        device: torch.device | str | int | None = None, rect: bool = True, stride: int = 32, top_k: int = 1024,
        agnostic: bool = False, end_to_end: bool | None = None, color: Literal["bgr", "rgb"] = "bgr",
        max_frame: tuple[int, int] = (1080, 1920), depth: int = 4,
    ) -> None:  # fmt: skip
        own_device, own_dtype = checked_model(model)
        shape = (imgsz, imgsz) if isinstance(imgsz, int) else imgsz
        sizes = tuple(sorted({batch} if isinstance(batch, int) else set(batch)))
        _check(shape, stride, conf, iou, max_det, top_k, sizes, max_frame, color, depth)
        options = Options(
            imgsz=shape, sizes=sizes, dtype=own_dtype if dtype is None else dtype, channels_last=channels_last,
            graphs=graphs, rect=rect, stride=stride, swap_channels=color == "bgr", max_frame=max_frame, depth=depth,
            end_to_end=end_to_end, engine={"compile": compile, "tolerance": tolerance},
            post={"conf": conf, "iou": iou, "max_det": max_det, "top_k": top_k, "agnostic": agnostic},
        )  # fmt: skip
        self._lifetime = Lifetime("Detector")
        device_streams = streams.of(own_device if device is None else device)
        self._lanes = Lanes(model, device_streams, options, self._lifetime)

    @property
    def device(self) -> torch.device:
        """Return the device that does the work."""
        return self._lanes.device_streams.device

    def prepare(self, *frame_sizes: tuple[int, int]) -> None:
        """Build what frames of these sizes (height, width) need, for every batch size; otherwise the first frame does.

        Raises: as building in the constructor; InputError, TooLargeError for a size.
        """
        self._lifetime.check()
        for size in frame_sizes:
            self._lanes.prepare(size)

    def predict(self, frames: Frame | Sequence[Frame]) -> list[Detections]:
        """Return the detections of each frame, in the order given.

        Args:
            frames: one frame or a sequence of them, of any sizes: uint8 `[height, width, 3]`, numpy arrays or tensors
                on the host, or tensors on the detector's device that are valid on the current stream.

        Returns:
            One `Detections` a frame, on the host, in pixels of the frame.

        Raises:
            InputError, TooLargeError: a frame cannot be used; none was processed. NumericsError: the model's output is
            not finite. ClosedError, ForkedError: used too late, elsewhere.
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
                # While one is waited for, the device has the next.
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
        """Yield the detections of a source's frames, in order, while the next ones are read, uploaded and computed.

        Args:
            source: frames as in `predict`. It is read in another thread, and each frame must be an array of its own
                (as OpenCV's `read()` gives); one on the device must be complete there. With `batch` above 1 a result
                waits until a batch is full, the size changes or the source ends: for live sources use `serve`.
            depth: batches on their way at once.

        Yields:
            One `Detections` a frame. Dropping or closing the iterator ends the reading; it never waits for the source.

        Raises:
            SourceError: the source raised. InputError, TooLargeError: it gave a frame that cannot be used. Both come
            after the results of all frames before. NumericsError: the model's output is not finite.
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
        """Return the detections of many sources at once, in batches of what is there.

        Each source is read in a thread of its own. Order is kept within a source. A source that stalls holds up no
        other; one that raises ends alone.

        Args:
            sources: by name, or a sequence (names are then their numbers). Frames as in `stream`.
            max_wait_s: how long the oldest frame waits for others to fill its batch. A batch that no source can add to
                (all queues that hold its size are full) does not wait.
            max_batch: frames a batch at most; None is the largest of `batch`.
            drop: when a source's queue is full: "never" has the source wait, "oldest" drops the frame that waits
                longest, "newest" the one that arrived. Every dropped frame is counted.
            queue: frames that may wait, for each source.
            depth: batches on their way at once.

        Returns:
            A `Server`: iterate it for `Served` results, close it (or use it as a context manager) to end.

        Raises:
            InputError: arguments that make no sense. ClosedError, ForkedError.
        """
        self._lifetime.check()
        largest = self._lanes.options.largest
        if max_batch is not None and not 1 <= max_batch <= largest:
            raise InputError(
                f"max_batch is {max_batch}; this detector takes 1 to {largest} frames a batch.",
                hint="Give the detector a larger `batch`, or several: batch=(1, 4, 16).",
            )
        return Server(
            self._lanes, sources, max_wait_s=max_wait_s, max_batch=max_batch or largest, drop=drop, queue=queue,
            depth=depth,
        )  # fmt: skip

    def stats(self) -> DetectorStats:
        """Return what was done so far; also after `close()`."""
        networks = self._lanes.networks
        return DetectorStats(
            **asdict(self._lanes.counts),
            num_lanes=sum(network.num_lanes for network in networks.values()),
            engines={name: network.engine.stats() for name, network in networks.items()},
            stager=self._lanes.ring.stats(),
        )

    def close(self) -> None:
        """Wait for work under way and give graphs, buffers and pinned memory back. Results stay valid."""
        if self._lifetime.close():
            self._lanes.close()


def _check(
    imgsz: tuple[int, ...], stride: int, conf: float, iou: float, max_det: int, top_k: int, sizes: tuple[int, ...],
    max_frame: tuple[int, int], color: str, depth: int,
) -> None:  # fmt: skip
    """Raise InputError if the arguments of a Detector make no sense."""
    wrong = None
    if len(imgsz) != 2 or any(side < stride or side % stride for side in imgsz):
        wrong = f"imgsz is {imgsz}; both sides must be multiples of the stride, {stride}"
    elif not 0 <= conf <= 1 or not 0 <= iou <= 1:
        wrong = f"conf is {conf} and iou is {iou}; both lie between 0 and 1"
    elif max_det < 1 or top_k < 1:
        wrong = f"max_det is {max_det} and top_k is {top_k}; both are at least 1"
    elif not sizes or sizes[0] < 1:
        wrong = f"batch is {sizes}; a batch has at least one frame"
    elif len(max_frame) != 2 or min(max_frame) < 1:
        wrong = f"max_frame is {max_frame}; it is (height, width) of the largest frame"
    elif color not in ("bgr", "rgb"):
        wrong = f"color is {color!r}; it is 'bgr' or 'rgb'"
    elif depth < 1:
        wrong = f"depth is {depth}; at least one upload has to be on its way"
    if wrong is not None:
        raise InputError(wrong + ".")
