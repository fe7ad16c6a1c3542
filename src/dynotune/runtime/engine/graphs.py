"""Capture a CUDA graph, and restore torch's state if a capture fails.

A replay repeats kernels with the addresses of the capture. So inputs are copied into static tensors, outputs
are in static tensors, and all other tensors that the kernels read (weights, and tensors that modules keep,
such as a detection head's anchors) must not be freed while the graph exists.
"""

import gc
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from dynotune.runtime.errors import CaptureError

NUM_WARMUPS = 3  # forward passes before a capture, which load kernels, choose algorithms and compile

# torch allows one capture at a time in a process.
_CAPTURING = threading.Lock()

# Graphs whose capture failed. The host allocator of torch 2.11 and older goes on asking them whether an
# allocation is theirs: freed, they would be asked through a dangling pointer.
_ABANDONED: list[torch.cuda.CUDAGraph] = []


class CapturedGraph:
    """One captured forward pass with its static inputs and outputs.

    Args:
        inputs: static tensors, to be written before each replay.
        outputs: nested; each replay overwrites its tensors.
        kept: all other tensors that the kernels read.
    """

    def __init__(
        self,
        graph: torch.cuda.CUDAGraph,
        inputs: tuple[torch.Tensor, ...],
        outputs: Any,
        kept: list[torch.Tensor],
    ) -> None:
        self._graph = graph
        self._kept = kept
        self.inputs = inputs
        self.outputs = outputs

    @property
    def is_alive(self) -> bool:
        return bool(self.inputs)

    def replay(self) -> None:
        """Enqueue the kernels on the current stream."""
        self._graph.replay()

    def reset(self) -> None:
        """Free the graph. The graph must not be running."""
        self._graph.reset()
        self.outputs = None
        self.inputs = ()
        self._kept = []


class Capturer:
    """Captures the graphs of one engine, which share a pool of memory and so must not replay at the same
    time."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._pools: list[tuple[int, int]] = []
        self._sharing: list[CapturedGraph] = []  # graphs of the newest pool

    def __call__(
        self,
        forward: Callable[..., Any],
        inputs: tuple[torch.Tensor, ...],
        kept: Callable[[], list[torch.Tensor]],
    ) -> CapturedGraph:
        """Capture a graph; see `capture`."""
        # torch refuses a pool whose graphs have all been freed. A pool that a failed capture used is better
        # not used again.
        if not any(graph.is_alive for graph in self._sharing):
            self._pools.append(torch.cuda.graph_pool_handle())
        sharing, self._sharing = self._sharing, []
        graph = capture(forward, inputs, stream=self._stream, pool=self._pools[-1], kept=kept)
        self._sharing = [*sharing, graph]
        return graph

    def replay_s(
        self, graphs: list[CapturedGraph], num_rounds: int = 5, num_replays: int = 10
    ) -> list[float]:
        """Return each graph's device seconds per replay: medians over rounds in which the graphs take
        turns."""
        times: list[list[float]] = [[] for _ in graphs]
        for _ in range(num_rounds):
            for graph, taken in zip(graphs, times, strict=True):
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                graph.replay()
                start.record()
                for _ in range(num_replays):
                    graph.replay()
                end.record()
                end.synchronize()
                taken.append(start.elapsed_time(end) / 1000 / num_replays)
        return [sorted(taken)[num_rounds // 2] for taken in times]

    def pool_bytes(self) -> int:
        wanted = {tuple(pool) for pool in self._pools}
        return sum(
            segment["total_size"]
            for segment in torch.cuda.memory_snapshot()
            if segment["device"] == self._stream.device.index and tuple(segment["segment_pool_id"]) in wanted
        )


def capture(
    forward: Callable[..., Any],
    inputs: tuple[torch.Tensor, ...],
    *,
    stream: torch.cuda.Stream,
    pool: tuple[int, int],
    kept: Callable[[], list[torch.Tensor]] = list,
) -> CapturedGraph:
    """Capture `forward(*inputs)`, without gradients.

    Synchronises the device and returns torch's cached memory to it, so that the graph's pool can use the
    memory. Other threads may keep using the GPU meanwhile.

    Args:
        forward: function that reads `inputs` in place; its outputs become the graph's.
        inputs: tensors on one GPU, which become the graph's static inputs.
        stream: a side stream for the capture. The warm-up runs on another stream, so that libraries, which
            keep a workspace per stream, first allocate theirs during the capture, and so from `pool`.
        pool: pool from `torch.cuda.graph_pool_handle()`; graphs that share a pool must not replay at the same
            time.
        kept: called after the warm-up and after the capture; returns further tensors that the graph reads.

    Raises:
        CaptureError: if an operation in `forward` cannot be captured.
        torch.OutOfMemoryError: if memory is too small for the warm-up or the capture.
    """
    device = stream.device
    with _CAPTURING, torch.cuda.device(device), torch.no_grad():
        warm = torch.cuda.Stream(device)
        warm.wait_stream(torch.cuda.current_stream(device))
        try:
            with torch.cuda.stream(warm):
                for _ in range(NUM_WARMUPS):
                    forward(*inputs)
        finally:
            # Also after an error: what was enqueued until then may still read the inputs, and write.
            torch.cuda.synchronize(device)
        before = kept()
        with _no_garbage_collection():
            torch.cuda.empty_cache()
            graph, outputs = _captured(forward, inputs, stream, pool)
        # A model that replaces a tensor it keeps while another bucket is built would free it under this
        # graph.
        return CapturedGraph(graph, inputs, outputs, before + kept())


def _captured(
    forward: Callable[..., Any],
    inputs: tuple[torch.Tensor, ...],
    stream: torch.cuda.Stream,
    pool: tuple[int, int],
) -> tuple[torch.cuda.CUDAGraph, Any]:
    # Not `torch.cuda.graph`: when the end of a capture raises, it leaves its side stream the current one.
    graph = torch.cuda.CUDAGraph()
    failure: BaseException | None = None
    outputs = None
    with torch.cuda.stream(stream):
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            outputs = forward(*inputs)
        except BaseException as error:
            failure = error
        # End the capture in any case: a stream that is still capturing cannot be used again.
        try:
            graph.capture_end()
        except RuntimeError as error:
            failure = failure or error
    if failure is None:
        return graph, outputs
    # The frames hold what the capture made, and through it memory.
    traceback.clear_frames(failure.__traceback__)
    _recover(graph, stream, pool)
    if isinstance(failure, torch.cuda.OutOfMemoryError) or not isinstance(failure, Exception):
        raise failure
    raise CaptureError(
        f"The model cannot be captured: {type(failure).__name__}: {first_line(failure)}",
        hint=(
            "Usually something waits for the GPU (.item(), .cpu(), a mask that selects) or copies from "
            "the host."
        ),
    ) from failure


def _recover(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream, pool: tuple[int, int]) -> None:
    """Undo what a failed capture leaves behind in torch.

    Up to torch 2.11, the allocator believes that an invalidated capture goes on: it never again frees memory
    that was used on two streams, and `empty_cache()` aborts. The random generator believes the same, and
    `torch.rand` raises. torch 2.12 and 2.13 keep the pool's memory reserved, which cannot be undone here.
    """
    _ABANDONED.append(graph)
    graph.reset()
    device = stream.device
    try:
        torch._C._cuda_endAllocateToPool(device.index, pool)
    except (AttributeError, RuntimeError):
        pass  # a torch that ended it itself
    else:
        torch._C._cuda_releasePool(device.index, pool)
    torch.cuda.synchronize(device)
    healing = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        scratch = torch.zeros(1, device=device)
        # A capture that succeeds restores the generator at its end.
        healing.capture_begin(capture_error_mode="thread_local")
        scratch.add_(1)
        healing.capture_end()
    torch.cuda.synchronize(device)
    healing.reset()


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Collect garbage before the capture: a finalizer that frees another graph would invalidate it."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else "no message"


def kept_tensors(model: torch.nn.Module) -> list[torch.Tensor]:
    """Return every tensor that a module of `model` keeps: parameters, buffers and plain attributes, also
    nested."""
    found: list[torch.Tensor] = []
    for module in model.modules():
        for value in vars(module).values():
            _collect(value, found, depth=3)
    return found


def _collect(value: object, found: list[torch.Tensor], depth: int) -> None:
    if isinstance(value, torch.Tensor):
        found.append(value)
    elif depth and isinstance(value, dict):
        for item in value.values():
            _collect(item, found, depth - 1)
    elif depth and isinstance(value, list | tuple | set):
        for item in value:
            _collect(item, found, depth - 1)
