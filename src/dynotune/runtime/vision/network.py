"""Run a YOLO-shaped model for one input size, from a filled input to packed detections on the host."""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from dynotune.runtime.engine.engine import Engine
from dynotune.runtime.engine.graphs import CapturedGraph, Capturer
from dynotune.runtime.engine.numerics import nonfinite_weights
from dynotune.runtime.engine.prepare import device_of, own_dtype
from dynotune.runtime.errors import CaptureError, InputError, NumericsError
from dynotune.runtime.streams import Event, Streams
from dynotune.runtime.vision.letterbox import Letterbox
from dynotune.runtime.vision.nms import PostProcess
from dynotune.runtime.vision.options import EngineOptions

_log = logging.getLogger(__name__)

MAX_CAPTURED = 4  # frame sizes with graphs of their own, which hold memory


class OneOutput(nn.Module):  # type: ignore[misc]
    """Wraps a model so that its detections are the only output.

    In evaluation mode, YOLO models return a tuple or list with the detections first.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Turn `images` `[B, 3, H, W]`, RGB, 0 to 1, into the model's own output.

        Raises: InputError if that output is not a tensor, or not three-dimensional.
        """
        out = self.model(images)
        if isinstance(out, (tuple, list)) and out:
            out = out[0]
        if not isinstance(out, Tensor) or out.dim() != 3:
            what = (
                f"a tensor of {out.dim()} dimensions"
                if isinstance(out, Tensor)
                else f"a {type(out).__name__}"
            )
            raise InputError(
                f"The model returned {what}; a detector's output is [B, 4 + num_classes, N] or [B, N, 6].",
                hint="Give the network itself, such as YOLO('yolo11n.pt').model, not the object around it.",
            )
        return out


def checked_model(model: Any) -> tuple[torch.device, torch.dtype]:
    """Return the model's device and dtype, after checks.

    Raises:
        InputError: if `model` is no module, has no parameters, is in training mode, or is spread over
            devices.
        NumericsError: if a parameter or buffer is not finite.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"The model is a {type(model).__name__}, not a torch.nn.Module.")
    if model.training:
        raise InputError("The model is in training mode.", hint="Call model.eval() first.")
    if next(model.parameters(), None) is None:
        raise InputError(
            "The model has no parameters.", hint="Give a network in torch, not an exported file."
        )
    device = device_of(model)
    for name in nonfinite_weights(model, limit=1):
        raise NumericsError(
            f"{name} of the model has values that are not finite.", hint="Load the weights again."
        )
    return device, own_dtype(model)


def is_end_to_end(shape: Iterable[int]) -> bool:
    """Return whether an output of this shape is `[B, N, 6]` rather than `[B, 4 + num_classes, N]`.

    Raises: InputError if the shape fits both or neither.
    """
    _, middle, last = shape
    as_rows, as_channels = last == 6, middle >= 5 and last >= middle
    if as_rows == as_channels:
        raise InputError(
            f"An output of [B, {middle}, {last}] can be read in {'two ways' if as_rows else 'no way'}: "
            "[B, 4 + num_classes, N], or end-to-end [B, N, 6].",
            hint="Say end_to_end=True or end_to_end=False.",
        )
    return as_rows


class Detecting(nn.Module):  # type: ignore[misc]
    """A detector together with its post-processing, to be captured as one graph.

    `compiles`: compile the network. Post-processing is not compiled: fused differently, it could decide
    otherwise on boxes that overlap by exactly the threshold.
    """

    def __init__(self, model: OneOutput, post: PostProcess, *, compiles: bool) -> None:
        super().__init__()
        self.model, self.post = model, post
        self._found = torch.compiler.disable(_found) if compiles else _found

    def forward(self, images: Tensor, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """
        Args:
            images: RGB images, as for `OneOutput`.
            places: places for `PostProcess`, viewed as int32: an Engine would convert floating-point inputs.

        Returns:
            the result of `PostProcess`, and the network's own output.
        """
        raw = self.model(images)
        packed, rows = self._found(self.post, raw, places)
        return packed, rows, raw


def _found(post: PostProcess, raw: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    # Widened here, not where it is compiled: there the rounding to half precision would be skipped, and boxes
    # would be made of other numbers than those that are checked.
    return post(raw.float(), places.view(torch.float32))  # type: ignore[no-any-return]


def _nothing() -> Tensor:
    return torch.empty(0, dtype=torch.uint8)


class Track:
    """A stream for forward passes, with memory for the graphs that run on it one after the other.

    Forward passes on two tracks run at the same time: one alone leaves most of a large GPU idle.
    """

    def __init__(self, device_streams: Streams, *, graphs: bool) -> None:
        self.stream = device_streams.side()
        self.capturer = Capturer(device_streams.device) if graphs and device_streams.pins else None


@dataclass(eq=False, slots=True)
class Lane:
    """The buffers of one batch under way; the batch owns them from the upload until its result is taken.

    Args:
        track: where the work behind the upload runs.
        frames: uint8, flat, in pinned memory: what is uploaded.
        uploaded: the same on the device; on the CPU it is `frames` itself.
        images: `[B, 3, H, W]`, filled by the letterbox.
        host: the packed detections of `PostProcess`, in pinned memory; `rows` and `counts` are views of it.
        sizes: the frame size (height, width) from which each image was last filled.
        regions: views of `images`, by first image, number and frame size.
        spun, slept: events; one of them is recorded after the copy into `host`, depending on how the host
            will wait.
        candidates: the candidates of `PostProcess` for the batch, on the device.
        graphs: by frame size, everything from `frames` to `host`; with None, from `images` to `host`. A
            value of None: it cannot be captured.
    """

    track: Track
    images: Tensor
    host: Tensor
    rows: Tensor
    counts: Tensor
    places: Tensor
    sizes: list[tuple[int, int] | None]
    ready: Event
    spun: Event
    slept: Event
    frames: Tensor = field(default_factory=_nothing)
    uploaded: Tensor = field(default_factory=_nothing)
    regions: dict[tuple[int, int, tuple[int, int]], Tensor] = field(default_factory=dict)
    candidates: Tensor | None = None
    graphs: dict[tuple[int, int] | None, CapturedGraph | None] = field(default_factory=dict)

    def forget(self, *, every: bool) -> None:
        """Free the graphs that read `frames`, or every graph; none may be running."""
        for size in [size for size in self.graphs if every or size is not None]:
            graph = self.graphs.pop(size)
            if graph is not None:
                graph.reset()


class Network:
    """Runs forward and suppression for one batch size and input size.

    `shape`: shape of the input, `(B, 3, H, W)`. `dtype`: dtype of the input for the model. `tracks`: gives
        the track of each new lane.
    """

    def __init__(
        self,
        model: OneOutput,
        shape: tuple[int, int, int, int],
        *,
        post: PostProcess,
        device_streams: Streams,
        tracks: Iterator[Track],
        dtype: torch.dtype,
        channels_last: bool,
        graphs: bool,
        engine: EngineOptions,
    ) -> None:
        self._shape = shape
        self._tracks = tracks
        self._streams, self._dtype = device_streams, dtype
        self._layout = torch.channels_last if channels_last else torch.contiguous_format
        self._post = post
        device = device_streams.device
        # Without `compile=`, an Engine compiles on a GPU and not on a CPU.
        compiles = device_streams.pins if engine.compile is None else engine.compile is not False
        generator = torch.Generator(device).manual_seed(0)
        # One image, seen many times: the example is kept. It is also checked with all its values in another
        # order.
        images = torch.rand(1, *shape[1:], generator=generator, device=device).expand(shape)
        # Of which boxes are kept nothing is compared: the least difference in a score reorders them.
        self.engine = Engine(
            Detecting(model, post, compiles=compiles).eval(),
            shapes=[(images, _bits(self._new_places()))],
            dtype=dtype,
            channels_last=channels_last,
            graphs=graphs,
            device=device,
            checked=lambda outputs: outputs[2],
            compile=engine.compile,
            tolerance=engine.tolerance,
        )
        # The lane that was free for longest comes next, so that batches take the tracks in turn.
        self._free: deque[Lane] = deque()
        self._lanes: list[Lane] = []
        self._captures = True
        self._closed = False

    @property
    def num_lanes(self) -> int:
        return len(self._lanes)

    @property
    def pinned_bytes(self) -> int:
        """Return the bytes of pinned memory for frames."""
        return sum(lane.frames.numel() for lane in self._lanes) if self._streams.pins else 0

    def _new_places(self) -> Tensor:
        return torch.ones(self._shape[0], 5, device=self._streams.device)

    def free_lane(self) -> Lane | None:
        """Return a lane that no work reads any more; None if all are in use."""
        return self._free.popleft() if self._free else None

    def new_lane(self) -> Lane:
        """Return another lane, without memory for frames."""
        batch, num_rows = self._shape[0], self._post.max_det + 1
        # Zeros: images beyond a partial batch are computed too, and must not be NaN.
        images = torch.zeros(self._shape, dtype=self._dtype, device=self._streams.device)
        host = self._streams.pinned(4 * batch * num_rows * 6).view(torch.float32).view(batch, num_rows, 6)
        lane = Lane(
            track=next(self._tracks),
            images=images.to(memory_format=self._layout),
            host=host,
            rows=host[:, : num_rows - 1],
            counts=host[:, num_rows - 1, :4],
            places=self._new_places(),
            sizes=[None] * batch,
            ready=self._streams.event(),
            spun=self._streams.event(spins=True),
            slept=self._streams.event(),
        )
        self._lanes.append(lane)
        return lane

    def make_room(self, lane: Lane, frame_bytes: int) -> None:
        """Give a lane that is not in use memory for so many bytes of each frame of a batch."""
        num_bytes = frame_bytes * self._shape[0]
        if lane.frames.numel() >= num_bytes:
            return
        lane.forget(every=False)
        lane.frames = lane.uploaded = _nothing()
        lane.frames = self._streams.pinned(num_bytes)
        # On the CPU frames are resized from where they were copied to.
        lane.uploaded = (
            torch.empty(num_bytes, dtype=torch.uint8, device=self._streams.device)
            if self._streams.pins
            else lane.frames
        )

    def graph(self, lane: Lane, letterbox: Letterbox | None = None) -> CapturedGraph | None:
        """Return the lane's graph from `images`, or with a letterbox from a batch of frames of its size.

        Waits for the device at the first call, to capture. Returns None if there is no such graph.
        """
        size = None
        if letterbox is not None:
            size = (letterbox.placement.frame_height, letterbox.placement.frame_width)
        if size not in lane.graphs:
            is_full = size is not None and len(lane.graphs) >= MAX_CAPTURED
            if lane.track.capturer is None or not self._captures or is_full:
                return None
            lane.graphs[size] = self._captured(lane, lane.track.capturer, letterbox)
        return lane.graphs[size]

    def _captured(self, lane: Lane, capturer: Capturer, letterbox: Letterbox | None) -> CapturedGraph | None:
        kept, outside = [lane.host, lane.frames, lane.uploaded], list[Tensor]()
        if letterbox is not None:
            # The calls before a capture fill the images, whose borders then are no other size's any more.
            lane.sizes[:] = [None] * len(lane.sizes)
            kept += letterbox.tables
            region = letterbox.region(lane.images)
            host, there = (
                letterbox.frames_in(memory, self._shape[0]) for memory in (lane.frames, lane.uploaded)
            )

        def work(forward: Callable[..., Any], images: Tensor, places: Tensor) -> Tensor:
            if letterbox is not None:
                region.copy_(letterbox.picture(there.copy_(host, non_blocking=True)))
            packed, candidates, _ = forward(images, places)
            lane.host.copy_(packed, non_blocking=True)
            # Allocated before the capture, and so outside of the memory into which other graphs write.
            if not outside:
                outside.append(torch.empty_like(candidates))
            return outside[0].copy_(candidates)

        inputs = (lane.images, _bits(lane.places))
        try:
            return self.engine.captured_apart(work, inputs, capturer=capturer, kept=lambda: kept)
        except (CaptureError, torch.cuda.OutOfMemoryError) as error:
            # Without it, the engine's own graph does the same, with copies before and after it.
            self._captures = False
            _log.warning("batches of %s are not captured as a whole: %s", self._shape, error)
            return None

    def give_lane(self, lane: Lane) -> None:
        """Take back a lane whose work has ended."""
        if not self._closed:
            self._free.append(lane)

    def enqueue(self, lane: Lane, graph: CapturedGraph | None, done: Event) -> None:
        """Enqueue the graph, or without one forward, suppression and the copy to the host, on the lane's
        track, then record `done`; does not wait."""
        stream = lane.track.stream
        with self._streams.on(stream):
            if graph is not None:
                graph.replay()
                lane.candidates = graph.outputs
            else:
                packed, lane.candidates, _ = self.engine(lane.images, _bits(lane.places))
                lane.host.copy_(packed, non_blocking=True)
        done.record(stream)

    def settle(self, lane: Lane) -> None:
        """Finish suppression for a batch that was not settled; waits for the device."""
        assert lane.candidates is not None
        with self._streams.on(lane.track.stream):
            packed = self._post.settle(lane.candidates, lane.places, lane.host.to(self._streams.device))
            lane.host.copy_(packed)

    def close(self) -> None:
        """Free graphs and buffers; the work of all lanes must have ended."""
        self._closed = True
        self._free.clear()
        for lane in self._lanes:
            lane.forget(every=True)
            lane.frames = lane.uploaded = _nothing()
        self.engine.close()


def _bits(places: Tensor) -> Tensor:
    return places.view(torch.int32)
