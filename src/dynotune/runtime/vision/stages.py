"""Process a batch of a detector in three stages: copies into pinned memory, all launches, results.

On a GPU one stream uploads, and one of the tracks, which batches take in turn, does all else: in one graph if
all frames of the batch have one size. A batch owns its buffers (its lane) through all stages; they are reused
only when the host has seen the end of the last stage. No other rule is needed to keep a buffer from being
overwritten.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import cycle
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from dynotune.runtime.engine.graphs import CapturedGraph
from dynotune.runtime.errors import InputError, NumericsError
from dynotune.runtime.lifetime import Lifetime
from dynotune.runtime.streams import Event, Streams
from dynotune.runtime.transfer.host_threads import Workers
from dynotune.runtime.vision.frame_copies import Copied, FrameCopier
from dynotune.runtime.vision.frames import (
    FEW,
    Frame,
    chunk_of,
    common_size,
    is_on_device,
    neighbours,
    size_of,
)
from dynotune.runtime.vision.letterbox import Letterbox, Placement, place, rows_read
from dynotune.runtime.vision.network import Lane, Network, OneOutput, Track, is_end_to_end
from dynotune.runtime.vision.nms import FINITE, NUM_CANDIDATES, NUM_KEPT, SETTLED, PostProcess
from dynotune.runtime.vision.options import Options

__all__ = ["Detections"]


@dataclass(eq=False, repr=False, slots=True)
class Detections:
    """Boxes of one frame, best first, on the host.

    `len()` is the number of boxes.

    Attributes:
        rows: float32 `[N, 6]`: x1, y1, x2, y2 in pixels of the frame, score, class.
        num_candidates: number of boxes that scored above `conf`, before suppression.
        num_cut: number of these boxes that were beyond `top_k` and took no part in suppression.
    """

    rows: Tensor
    num_candidates: int
    num_cut: int

    @property
    def xyxy(self) -> Tensor:
        """Return float32 `[N, 4]`: corners in pixels of the frame, inside it."""
        return self.rows[:, :4]

    @property
    def conf(self) -> Tensor:
        """Return float32 `[N]`: scores."""
        return self.rows[:, 4]

    @property
    def cls(self) -> Tensor:
        """Return int64 `[N]`: classes."""
        return self.rows[:, 5].long()

    def __len__(self) -> int:
        return int(self.rows.shape[0])

    def __repr__(self) -> str:
        return f"Detections({len(self)} of {self.num_candidates} candidates)"


_log = logging.getLogger(__name__)
T = TypeVar("T")

MAX_LETTERBOXES = 64  # frame sizes whose tables are kept
MAX_PLACEMENTS = 1024  # kinds of frames that were checked
MAX_REGIONS = 256  # views of a lane's images


@dataclass(slots=True)
class Counts:
    """Counts of frames and batches whose results were taken, of candidates and those beyond `top_k`, of
    batches whose suppression took more rounds than its graph has, and of uploads and their bytes."""

    num_frames: int = 0
    num_batches: int = 0
    num_candidates: int = 0
    num_cut: int = 0
    num_unsettled: int = 0
    num_uploads: int = 0
    num_uploaded_bytes: int = 0


@dataclass(eq=False, slots=True)
class _Part:
    """Consecutive frames of a batch that have one size and one place.

    Args:
        start: index of the first frame in the batch; `num` frames follow from there.
        copied: the copy of the frames into the lane's memory; None for frames on the device, which are in
            `frames`.
        memory: the part of the lane's memory for frames in which they lie.
    """

    start: int
    num: int
    size: tuple[int, int]
    copied: Copied | None
    frames: Sequence[Tensor] = ()
    memory: slice | None = None


@dataclass(eq=False, slots=True)
class UnderWay:
    """A batch between two stages.

    Args:
        done: event that is reached when the results are on the host.
        parts: the parts of the batch.
        graph: does all that comes after the letterbox, or with `is_whole` all after the copies.
        given: for frames on the device, the event on the caller's stream after which they are valid.
    """

    network: Network
    lane: Lane
    num_frames: int
    done: Event
    parts: list[_Part] = field(default_factory=list)
    graph: CapturedGraph | None = None
    is_whole: bool = False
    given: Event | None = None


@contextmanager
def _without_gradients() -> Iterator[None]:
    """Turn off gradients and the caller's inference mode: other threads cannot write tensors made in that
    mode."""
    with torch.inference_mode(False), torch.no_grad():
        yield


@dataclass(eq=False)
class Lanes:
    """Take batches through the stages. Thread-safe; each stage works on one batch at a time.

    `model`: checked by `network.checked_model`.
    """

    model: nn.Module
    device_streams: Streams
    options: Options
    lifetime: Lifetime
    counts: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        self._model = OneOutput(self.model).eval()
        self._post: PostProcess | None = None
        self._networks: dict[tuple[int, int, int], Network] = {}
        self._letterboxes: dict[tuple[int, int, bool], tuple[Letterbox, Tensor]] = {}
        self._placements: dict[Any, Placement] = {}
        self._before = self.device_streams.side()
        self._tracks = [
            Track(self.device_streams, graphs=self.options.graphs) for _ in range(self.options.tracks)
        ]
        self._next_track = cycle(self._tracks)
        # Two locks, so that one batch is copied while another is launched; who needs both takes _staging
        # first.
        self._staging, self._launching = threading.RLock(), threading.RLock()
        # Of lanes and counts, held for a moment.
        self._state = threading.Lock()
        # Each reader of a server adds the sizes that it meets.
        self._adding_placement = threading.Lock()
        self._copier = FrameCopier()
        self._builder = Workers("dynotune-builder")

    @property
    def networks(self) -> dict[str, Network]:
        """Return the networks that were built, by the shape of their input."""
        return {"x".join(map(str, shape)): network for shape, network in self._networks.copy().items()}

    def placement(self, frame: Frame, name: str = "The frame") -> Placement:
        """Return the position of the frame in its input. Raises: InputError, TooLargeError if it cannot be
        used."""
        shape, dtype = getattr(frame, "shape", None), getattr(frame, "dtype", None)
        if not isinstance(shape, tuple) or dtype is None:
            return self._checked_placement(frame, name)
        # These properties decide whether an array is accepted.
        kind = (type(frame), shape, dtype, frame.device if isinstance(frame, Tensor) else None)
        known = self._placements.get(kind)
        if known is None:
            known = self._checked_placement(frame, name)
            with self._adding_placement:
                if len(self._placements) >= MAX_PLACEMENTS:
                    self._placements.clear()
                self._placements[kind] = known
        return known

    def _checked_placement(self, frame: Frame, name: str) -> Placement:
        size = size_of(frame, max_size=self.options.max_frame, name=name)
        if is_on_device(frame) and frame.device != self.device_streams.device:
            raise InputError(f"{name} is on {frame.device}, the detector on {self.device_streams.device}.")
        return place(size, self.options.imgsz, stride=self.options.stride, rect=self.options.rect)

    def key(self, frame: Frame, name: str = "The frame") -> tuple[int, int]:
        """Return the frame's key: frames with the same key fit into one batch. Raises: as `placement`."""
        at = self.placement(frame, name)
        return at.height, at.width

    def prepare(self, size: tuple[int, int]) -> None:
        """Build everything that frames of this size need."""
        blank = torch.zeros((*size, 3), dtype=torch.uint8)
        self.placement(blank)
        for batch in self.options.sizes:
            # As many at once as will be: what each leaves behind is what the steady state needs. The last is
            # partial.
            sizes = [batch] * max(1, self.options.depth - 1) + [max(1, batch - 1)]
            for under_way in [self.launch(self.stage([blank] * num)) for num in sizes]:
                self.discard(under_way)

    def stage(self, frames: Sequence[Frame], *, spins: bool = False) -> UnderWay:
        """Start to copy frames of one key, and take a lane for them. More than a few frames are copied by
        other threads, while this thread goes on.

        `spins`: busy-wait for the result: faster to wake, but takes a core from threads that launch.
        """
        with self._staging:
            self.lifetime.check()
            at = self.placement(frames[0])
            fits = next(size for size in self.options.sizes if size >= len(frames))
            network = self._network(fits, at.height, at.width)
            with self._state:
                lane = network.free_lane()
            if lane is None:
                with self._making():
                    lane = network.new_lane()
            batch = UnderWay(network, lane, len(frames), lane.spun if spins else lane.slept)
            try:
                size = common_size(frames)
                batch.graph = None if size is None else lane.graphs.get(size)
                if batch.graph is None:
                    if any(is_on_device(frame) for frame in frames):
                        batch.given = self.device_streams.record(self.device_streams.current())
                    self._built(partial(self._choose_graph, batch, frames, size))
                else:
                    batch.is_whole = True
                self._copy(batch, frames)
            except BaseException:
                self.abandon(batch)
                raise
            return batch

    @contextmanager
    def _making(self) -> Iterator[None]:
        """Make what outlives a call: it belongs to the stream that writes into it first."""
        with _without_gradients(), self.device_streams.on(self._before):
            yield

    def _built(self, build: Callable[[], T]) -> T:
        """Return what `build` makes in the one thread that builds: cuDNN keeps the algorithms that it chose
        for each thread, and lanes must not differ in them."""
        if not self.device_streams.pins:
            with self._making():
                return build()
        done: Future[T] = Future()

        def run() -> None:
            try:
                with self._making():
                    done.set_result(build())
            except BaseException as error:
                done.set_exception(error)

        self._builder.start(run)
        return done.result()

    def _choose_graph(self, batch: UnderWay, frames: Sequence[Frame], size: tuple[int, int] | None) -> None:
        """Make room for the frames in the lane, and capture its graph at the first batch of their size."""
        lane, network = batch.lane, batch.network
        if size is not None:
            letterbox, _ = self._letterbox(size, whole=False)
            network.make_room(lane, letterbox.frame_bytes)
            batch.graph = network.graph(lane, letterbox)
            batch.is_whole = batch.graph is not None
        elif sizes := {tuple(frame.shape[:2]) for frame in frames if not is_on_device(frame)}:
            network.make_room(lane, max(self._letterbox(one, whole=False)[0].frame_bytes for one in sizes))
        if batch.graph is None:
            batch.graph = network.graph(lane)

    def _copy(self, batch: UnderWay, frames: Sequence[Frame]) -> None:
        """Start to copy the frames of the host."""
        largest = len(frames) if batch.is_whole else chunk_of(self.options.largest)
        split = [(0, len(frames))] if batch.is_whole else neighbours(frames, largest)
        later, at_byte = len(split) > 1 or len(frames) > FEW, 0
        for start, num in split:
            some = frames[start : start + num]
            size = tuple(some[0].shape[:2])
            if is_on_device(some[0]):
                batch.parts.append(_Part(start, num, size, None, some))
                continue
            rows = rows_read(self.placement(some[0]))
            copied = self._copier.copy(some, batch.lane.frames[at_byte:], rows=rows, later=later)
            memory = slice(at_byte, at_byte + copied.num_bytes)
            batch.parts.append(_Part(start, num, size, copied, memory=memory))
            at_byte = memory.stop

    def launch(self, batch: UnderWay) -> UnderWay:
        """Enqueue upload, letterbox, forward, suppression and the copy of the results to the host; waits only
        for frames that are still being copied."""
        try:
            if batch.is_whole:
                self._launch_whole(batch)
            else:
                with _without_gradients():
                    self._launch_parts(batch)
        except BaseException:
            self.abandon(batch)
            raise
        return batch

    def _launch_whole(self, batch: UnderWay) -> None:
        lane, (part,) = batch.lane, batch.parts
        assert part.copied is not None
        part.copied.wait()
        with self._launching:
            self.lifetime.check()
            # Places beyond a batch that is not full are filled as well.
            if lane.sizes.count(part.size) < len(lane.sizes):
                with _without_gradients(), self.device_streams.on(lane.track.stream):
                    self._surround(lane, slice(None), *self._letterbox(part.size, whole=False))
            batch.network.enqueue(lane, batch.graph, batch.done)
            self._count_upload(part.copied)

    def _launch_parts(self, batch: UnderWay) -> None:
        lane = batch.lane
        for part in batch.parts:
            if part.copied is not None:
                part.copied.wait()
            with self._launching, self.device_streams.on(self._before):
                self.lifetime.check()
                if batch.given is not None:
                    self.device_streams.wait(self._before, batch.given)
                self._place(lane, part)
        with self._launching:
            self.lifetime.check()
            lane.ready.record(self._before)
            self.device_streams.wait(lane.track.stream, lane.ready)
            batch.network.enqueue(lane, batch.graph, batch.done)

    def _place(self, lane: Lane, part: _Part) -> None:
        """Upload frames of one size, and put them into the lane's images."""
        letterbox, where = self._letterbox(part.size, whole=part.copied is None)
        self._surround(lane, slice(part.start, part.start + part.num), letterbox, where)
        if part.copied is not None and part.memory is not None:
            frames = lane.frames[part.memory]
            if self.device_streams.pins:
                frames = lane.uploaded[part.memory].copy_(frames, non_blocking=True)
            frames = letterbox.frames_in(frames, part.num)
            self._count_upload(part.copied)
        else:
            for frame in part.frames:
                self.device_streams.keep(frame, self._before)
            frames = torch.stack(list(part.frames))
        self._region(lane, part, letterbox).copy_(letterbox.picture(frames))

    def _count_upload(self, copied: Copied) -> None:
        self.counts.num_uploads += 1
        self.counts.num_uploaded_bytes += copied.num_bytes

    def _surround(self, lane: Lane, places: slice, letterbox: Letterbox, where: Tensor) -> None:
        """Fill the grey around pictures and write down where they lie, unless frames of the same size came
        before."""
        at = letterbox.placement
        size = (at.frame_height, at.frame_width)
        if all(before == size for before in lane.sizes[places]):
            return
        num = len(lane.sizes[places])
        lane.sizes[places] = [None] * num
        lane.places[places].copy_(where.expand(num, 5))
        letterbox.pad(lane.images[places])
        lane.sizes[places] = [size] * num

    @staticmethod
    def _region(lane: Lane, part: _Part, letterbox: Letterbox) -> Tensor:
        key = (part.start, part.num, part.size)
        found = lane.regions.get(key)
        if found is None:
            if len(lane.regions) >= MAX_REGIONS:
                lane.regions.clear()
            found = lane.regions[key] = letterbox.region(lane.images[part.start : part.start + part.num])
        return found

    def collect(self, batch: UnderWay) -> list[Detections]:
        """Wait for the batch, which is the only wait, and return its results; its lane becomes free."""
        lane, network = batch.lane, batch.network
        try:
            batch.done.synchronize()
            counts = lane.counts.tolist()[: batch.num_frames]
            unsettled = not all(count[SETTLED] for count in counts)
            if unsettled:
                with _without_gradients():
                    network.settle(lane)
                counts = lane.counts.tolist()[: batch.num_frames]
            # A copy, as the lane's memory is used again; one a batch, of which each frame has its part.
            rows = lane.rows[: batch.num_frames].clone().view(-1, 6)
        except BaseException:
            self.abandon(batch)
            raise
        assert lane.candidates is not None
        num_rows, max_det = lane.candidates.shape[1], self.options.post.max_det
        nums_kept = [int(count[NUM_KEPT]) for count in counts]
        # One call of torch, not two a frame: what is kept of each frame, and the empty rows behind it.
        parts = rows.split([num for kept in nums_kept for num in (kept, max_det - kept)])
        results = []
        for kept, count in zip(parts[::2], counts, strict=True):
            num_candidates = int(count[NUM_CANDIDATES])
            results.append(Detections(kept, num_candidates, max(0, num_candidates - num_rows)))
        with self._state:
            network.give_lane(lane)
            self.counts.num_batches += 1
            self.counts.num_frames += batch.num_frames
            self.counts.num_unsettled += unsettled
            self.counts.num_candidates += sum(found.num_candidates for found in results)
            self.counts.num_cut += sum(found.num_cut for found in results)
        if not all(count[FINITE] for count in counts):
            raise NumericsError(
                "The model's output has values that are not finite.",
                hint="Its weights may be damaged, or too large for half precision: try dtype=torch.float32.",
            )
        return results

    def abandon(self, batch: UnderWay) -> None:
        """Free a batch's buffers without a result, once no work uses them any more."""
        for part in batch.parts:
            if part.copied is not None:
                part.copied.ended()
        self._drain()
        with self._state:
            batch.network.give_lane(batch.lane)

    discard = abandon

    def _drain(self) -> None:
        for stream in (self._before, *(track.stream for track in self._tracks)):
            self.device_streams.record(stream).synchronize()

    def _letterbox(self, size: tuple[int, int], *, whole: bool) -> tuple[Letterbox, Tensor]:
        """Return the letterbox and the place for frames of this size, `whole` on the device or in a chunk."""
        found = self._letterboxes.get((*size, whole))
        if found is None:
            at = place(size, self.options.imgsz, stride=self.options.stride, rect=self.options.rect)
            device = self.device_streams.device
            where = [at.left, at.top, at.gain, at.frame_width, at.frame_height]
            row = torch.tensor([where], dtype=torch.float32, device=device)
            if len(self._letterboxes) >= MAX_LETTERBOXES:
                # The oldest letterbox was made and used on one stream, so the allocator does not reuse its
                # memory before its last kernel has ended.
                self._letterboxes.pop(next(iter(self._letterboxes)))
            rows = None if whole else rows_read(at)
            found = Letterbox(at, device, swap_channels=self.options.swap_channels, rows=rows), row
            self._letterboxes[*size, whole] = found
        return found

    def _network(self, batch: int, height: int, width: int) -> Network:
        shape = (batch, 3, height, width)
        found = self._networks.get(shape[:1] + shape[2:])
        if found is not None:
            return found
        with self._staging, self._launching:
            found = self._networks.get(shape[:1] + shape[2:])
            if found is None:
                started_s = time.perf_counter()
                post = self._post_process(height, width)
                found = self._built(partial(self._new_network, shape, post))
                self._networks[shape[:1] + shape[2:]] = found
                took_s = time.perf_counter() - started_s
                _log.info(
                    "built the network for %d frames of %d by %d in %.1f s", batch, height, width, took_s
                )
        return found

    def _new_network(self, shape: tuple[int, int, int, int], post: PostProcess) -> Network:
        return Network(
            self._model,
            shape,
            post=post,
            device_streams=self.device_streams,
            tracks=self._next_track,
            dtype=self.options.dtype,
            channels_last=self.options.channels_last,
            graphs=self.options.graphs,
            engine=self.options.engine,
        )

    def _post_process(self, height: int, width: int) -> PostProcess:
        if self._post is None:
            end_to_end = self.options.end_to_end
            if end_to_end is None:
                parameter = next(self.model.parameters())
                blank = torch.zeros(1, 3, height, width, dtype=parameter.dtype, device=parameter.device)
                with _without_gradients():
                    end_to_end = is_end_to_end(self._model(blank).shape)
            self._post = PostProcess(end_to_end=end_to_end, **asdict(self.options.post))
        return self._post

    def close(self) -> None:
        """Wait for work under way and free everything."""
        with self._staging:
            self._copier.stop()
            self._builder.stop()
        with self._staging, self._launching:
            self._drain()
            for network in self._networks.values():
                network.close()
            self._networks.clear()
            self._letterboxes.clear()
