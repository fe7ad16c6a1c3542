"""Prepare a model for a few input shapes: one captured graph per shape, checked against the eager model."""

import gc
import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from typing import Any, Literal

import torch
from torch.utils import _pytree as pytree

from dynotune.runtime import streams
from dynotune.runtime.engine.bucket_builder import (
    Builder,
    Built,
    Compile,
    prepared_input,
    tuned_convolutions,
)
from dynotune.runtime.engine.buckets import Bucket, BucketTable, Padding, Shapes, as_tensor, parse_buckets
from dynotune.runtime.engine.dtypes import choose, name_of
from dynotune.runtime.engine.graphs import CapturedGraph, Capturer, first_line, kept_tensors
from dynotune.runtime.engine.numerics import ErrorMeasure, relative_error
from dynotune.runtime.engine.prepare import Checked, Inputs, check_arguments, device_of, own_dtype, prepare
from dynotune.runtime.engine.stats import BucketStats, DtypeTried, EngineStats
from dynotune.runtime.engine.timing import CallTimer, DeviceTimer, HostTimer, percentile
from dynotune.runtime.errors import InputError
from dynotune.runtime.lifetime import Closing, Lifetime

__all__ = ["Engine"]

log = logging.getLogger("dynotune.runtime")

_MAX_LOGGED = 20  # different fall-backs that are logged; all are counted

# Graphs of engines that a forked child closed: freeing them there would call into a CUDA that is not the
# child's.
_INHERITED: list[object] = []


class Engine(Closing):
    """Runs a model on known input shapes, without launching its kernels one by one.

    For every shape (a bucket) the model is compiled, if requested, and captured as a CUDA graph. Outputs are
    compared with the eager model's, also on inputs that the capture has not seen. If capture fails, the
    bucket runs without a graph, and the log and `stats()` give the reason. On the CPU there are no graphs;
    everything else is the same.

    The model runs in eval mode, without gradients, and must not keep state from call to call. The model is
    not changed: if dtype, device, layout or folding differ, the engine runs a copy. Otherwise it runs the
    model itself, whose weights must then not be replaced.

    Streams: a call enqueues on the caller's current stream and does not wait for the GPU, unless an input is
    on the host (use a `Stager` to avoid that). Inputs must be valid on that stream, and outputs are. Calls
    from several streams run one after the other. Thread-safe; calls are serialised.

    Args:
        model: the model to run; its outputs are tensors, or tuples, lists and dicts of tensors.
        shapes: a list of buckets: a shape `(B, C, H, W)`, an example input, or a tuple of these for several
            inputs. Models that take integers need examples.
        dtype: dtype of weights and floating-point inputs; None keeps the model's own. "auto" tries bfloat16,
            float16 and, with torchao, int8 and fp8. It takes the fastest that is proved faster and, on the
            inputs of `shapes` (give real ones), no worse against float64, or within `tolerance` if given.
            `stats()` says why.
        channels_last: store four-dimensional weights and inputs in channels-last order.
        compile: None compiles on a GPU and not on the CPU; True or False decides; a string is a mode, and a
            mapping the arguments, of `torch.compile`. With a list of these, each bucket keeps the fastest, as
            measured; "measure" is [True, False].
        graphs: capture CUDA graphs, on a GPU.
        device: device to run on; None is the model's device.
        borrow: return the graph's own outputs instead of copies; they are valid until the next call of the
            same shape. Only one thread can use the engine then, as long as that thread lives.
        tolerance: largest accepted error; None depends on the dtype (float32 1e-4, or 5e-3 on a GPU, for
            TF32; float16 2e-2; bfloat16 5e-2). `math.inf` accepts every error, which is still reported.
        pad: dimensions in which smaller inputs may be padded, if the model's semantics allow it: "batch"
            (dimension 0, with zeros; outputs are cut to the caller's rows, which is checked at build), or a
            mapping from dimensions to fill values. Outputs are cut in dimension 0 only.
        fold: fold BatchNorm into the preceding convolution if the results stay exact enough.
        error: function that measures the error of one output tensor; by default ‖found - expected‖ /
            ‖expected‖.
        checked: function that takes the outputs and returns those whose error is measured; by default all.
            Use it for outputs that jump when others change a little, such as sorted rows.
        tune_convolutions: let cuDNN time its algorithms for each bucket, during the build.
        time_every: on a GPU, time every n-th call.

    Raises:
        InputError: if an argument cannot be used, or the model fails on a bucket.
        NumericsError: if the eager model gives NaN, or the error exceeds the tolerance.
        DeviceError: if the device is not available.
        torch.OutOfMemoryError: if no bucket fits. If some fit, the others are left out, and a warning is
            logged.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        shapes: Any,
        dtype: torch.dtype | Literal["auto"] | None = None,
        channels_last: bool = False,
        compile: Compile = None,
        graphs: bool = True,
        device: torch.device | str | int | None = None,
        borrow: bool = False,
        tolerance: float | None = None,
        pad: str | Mapping[int, float] | None = None,
        *,
        fold: bool = True,
        error: ErrorMeasure = relative_error,
        checked: Checked | None = None,
        tune_convolutions: bool = True,
        time_every: int = 16,
    ) -> None:
        check_arguments(model, None if dtype == "auto" else dtype, tolerance, time_every)
        self.device = streams.resolved(device_of(model) if device is None else device)
        self._tried: tuple[DtypeTried, ...] = ()
        checked = checked or (lambda outputs: outputs)
        if dtype == "auto":
            how = {
                "channels_last": channels_last,
                "compile": compile,
                "graphs": graphs,
                "device": self.device,
            }
            how |= {"pad": pad, "fold": fold, "error": error, "checked": checked}

            def build(made: torch.nn.Module, dtype: torch.dtype) -> Engine:
                return Engine(
                    made, shapes, dtype, tolerance=math.inf, tune_convolutions=tune_convolutions, **how
                )

            (model, dtype), self._tried = choose(
                model, shapes, build, device=self.device, tolerance=tolerance, measure=error, checked=checked
            )
        self.dtype = dtype or own_dtype(model)
        on_gpu = self.device.type == "cuda"
        self._channels_last = channels_last
        self._padding = Padding(pad)
        self._tunes_convolutions = tune_convolutions and on_gpu
        self._borrow = borrow
        self._borrower: threading.Thread | None = None
        self._lifetime = Lifetime("Engine")
        self._lock = threading.Lock()
        self._streams = streams.of(self.device)
        self._done = torch.cuda.Event() if on_gpu else None
        self._timer: CallTimer = DeviceTimer(time_every) if on_gpu else HostTimer()
        self._num_calls = 0
        self._fallbacks: Counter[str] = Counter()
        self._logged: set[tuple[str, object]] = set()
        self._last_stats: EngineStats | None = None
        self._capturer = _capturer(self.device) if graphs else None
        buckets = parse_buckets(shapes, self.dtype)
        self._dtypes = buckets[0].dtypes
        with self._on_device(), torch.no_grad():
            prepared = prepare(
                model,
                buckets,
                device=self.device,
                dtype=self.dtype,
                channels_last=channels_last,
                tolerance=tolerance,
                measure=error,
                checked=checked,
                folds=fold,
                padding=self._padding,
            )
            self._model, self._num_folded = prepared.model, len(prepared.folded)
            self._tolerance = prepared.tolerance
            self._left_out = {str(bucket): reason for bucket, reason in prepared.left_out.items()}
            builder = Builder(
                prepared,
                compile=compile,
                capturer=self._capturer,
                tune_convolutions=tune_convolutions,
                run=self._run,
            )
            self._built = self._build(builder, list(prepared.expected))
        self._table = BucketTable(list(self._built), self._padding)

    def _build(self, builder: Builder, buckets: list[Bucket]) -> dict[Bucket, Built]:
        """Build all buckets that fit, and record the others."""
        built: dict[Bucket, Built] = {}
        for bucket in buckets:
            try:
                built[bucket] = builder.build(bucket)
                continue
            except torch.cuda.OutOfMemoryError as error:
                self._left_out[str(bucket)] = f"out of memory: {first_line(error)}"
            except BaseException:
                for made in built.values():
                    made.reset()
                raise
            # Free what a build that ran out of memory left in reference cycles and in torch's cache.
            gc.collect()
            if self._done is not None:
                torch.cuda.empty_cache()
        for shape, reason in self._left_out.items():
            log.warning("bucket %s is left out: %s", shape, reason)
        if not built:
            raise torch.cuda.OutOfMemoryError(
                f"Not one bucket of the Engine could be built: {self._left_out}. Use smaller shapes, a "
                "narrower dtype, "
                "or free memory first."
            )
        return built

    def __call__(self, *inputs: Any) -> Any:
        """Enqueue the model on the current stream and return its outputs for `inputs`.

        `inputs`: tensors or numpy arrays, one per input of the model. Floating-point dtypes are converted on
        the device; other dtypes must match the bucket's. An input on the host is copied before the call
        returns.

        Returns:
            The model's outputs: new tensors, or with `borrow` the engine's own tensors. Shapes without a
            bucket run eagerly, which is counted, and logged once.

        Raises:
            InputError: if an input does not fit (number, dtype, device) or is empty, or another thread
                borrows outputs.
            ClosedError, ForkedError, CaptureError: used after close, in a forked child, or during a capture.
        """
        self._lifetime.check()
        self._streams.refuse_capture("An Engine was called")
        tensors = tuple(as_tensor(value, f"Input {index}") for index, value in enumerate(inputs))
        self._check_inputs(tensors)
        shapes = tuple(tensor.shape for tensor in tensors)
        with self._lock, self._on_device(), torch.no_grad():
            self._lifetime.check()
            self._check_borrower()
            bucket = self._table.find(shapes)
            mark = self._timer.begin()
            if bucket is None:
                outputs = self._run_unknown(tensors)
                self._count_fallback("no bucket has this shape", shapes)
            else:
                built = self._built[bucket]
                outputs = self._run(built, tensors)
                built.num_hits += 1
                built.num_padded += shapes != bucket.shapes
                if built.reason:
                    self._count_fallback(built.reason, None)
            self._timer.end(mark)
            self._num_calls += 1
            return outputs

    def captured_apart(
        self,
        work: Callable[..., Any],
        inputs: Inputs,
        *,
        capturer: Capturer,
        kept: Callable[[], list[torch.Tensor]] = list,
    ) -> CapturedGraph | None:
        """Capture the model and work after it as a graph that may run beside the engine's own graphs.

        Args:
            work: called as `work(forward, *inputs)`, where `forward` is the model in the way that was checked
                for these inputs. Its outputs become the graph's.
            inputs: tensors as the model takes them: on the engine's device, of a bucket's shapes. They become
                the graph's static inputs.
            capturer: makes the graph, which shares memory with the other graphs of this capturer.
            kept: returns further tensors that `work` reads or writes.

        Returns:
            The graph; None if the engine runs these shapes without a graph.

        Raises:
            CaptureError: if `work` cannot be captured.
            torch.OutOfMemoryError: if memory is too small.
            ClosedError, ForkedError: used after close, or in a forked child.
        """
        self._lifetime.check()
        with self._lock, self._on_device(), tuned_convolutions(self._tunes_convolutions):
            bucket = self._table.find(tuple(tensor.shape for tensor in inputs))
            built = None if bucket is None else self._built[bucket]
            if built is None or built.graph is None:
                return None
            model, forward = self._model, built.forward
            return capturer(
                lambda *tensors: work(forward, *tensors), inputs, lambda: [*kept_tensors(model), *kept()]
            )

    def stats(self) -> EngineStats:
        """Return the engine's description and totals; after `close()`, the last ones. Does not wait for the
        GPU."""
        with self._lock:
            return self._last_stats or self._stats()

    def close(self) -> None:
        """Wait for the last call, and free the graphs and their memory. Borrowed outputs are then no longer
        valid."""
        if not self._lifetime.is_ours:
            _INHERITED.append(self._built)
            self._lifetime.close()
            return
        with self._lock:
            if not self._lifetime.close():
                return
            if self._done is not None:
                self._done.synchronize()
            self._last_stats = self._stats()
            for built in self._built.values():
                built.reset()
            self._built = {}
            self._model = torch.nn.Identity()

    def _run(self, built: Built, tensors: Inputs) -> Any:
        """Run a bucket on inputs that fit it; smaller inputs are padded."""
        bucket = built.bucket
        rows = tensors[0].shape[0] if 0 in self._padding.fills and tensors[0].dim() else None
        if rows == bucket.batch:
            rows = None
        with self._ordered():
            if built.graph is None:
                ready = tuple(map(self._filled, tensors, bucket.shapes, bucket.dtypes))
                return _cut(self._forward(built.forward, ready), rows, bucket.batch)
            for tensor, static in zip(tensors, built.graph.inputs, strict=True):
                self._padding.write(tensor, static)
            built.graph.replay()
            lent = _cut(built.graph.outputs, rows, bucket.batch)
            return lent if self._borrow else _cloned(lent)

    def _run_unknown(self, tensors: Inputs) -> Any:
        with self._ordered():
            return self._forward(
                self._model,
                tuple(
                    prepared_input(tensor, dtype, self.device, self._channels_last)
                    for tensor, dtype in zip(tensors, self._dtypes, strict=True)
                ),
            )

    def _forward(self, forward: Any, ready: Inputs) -> Any:
        # A graph ignores autocast, so its fall-back must ignore it too.
        with torch.autocast(self.device.type, enabled=False):
            return forward(*ready)

    def _filled(self, tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if tensor.shape == shape:
            return prepared_input(tensor, dtype, self.device, self._channels_last)
        filled = prepared_input(
            torch.empty(shape, dtype=dtype, device=self.device), dtype, self.device, self._channels_last
        )
        self._padding.write(tensor, filled)
        return filled

    def _ordered(self) -> AbstractContextManager[None]:
        return nullcontext() if self._done is None else _After(self._done, self.device)

    def _on_device(self) -> AbstractContextManager[Any]:
        return torch.cuda.device(self.device) if self._done is not None else nullcontext()

    def _check_inputs(self, tensors: Inputs) -> None:
        if len(tensors) != len(self._dtypes):
            raise InputError(
                f"{len(tensors)} inputs were given, where the engine was built for {len(self._dtypes)}.",
                hint="Pass what the model takes, by position.",
            )
        for index, (tensor, dtype) in enumerate(zip(tensors, self._dtypes, strict=True)):
            if tensor.dtype != dtype and not (tensor.is_floating_point() and dtype.is_floating_point):
                raise InputError(
                    f"Input {index} is {name_of(tensor.dtype)}, where the engine was built for "
                    f"{name_of(dtype)}.",
                    hint=(
                        "Only floating dtypes are converted: an integer image, say, may have to be scaled "
                        "first."
                    ),
                )
            if tensor.device != self.device and tensor.device.type != "cpu":
                raise InputError(
                    f"Input {index} is on {tensor.device}, the engine on {self.device}.",
                    hint=f"Move it with .to('{self.device}').",
                )
            if tensor.numel() == 0:
                raise InputError(
                    f"Input {index} is empty: {tuple(tensor.shape)}.", hint="Skip empty batches."
                )

    def _check_borrower(self) -> None:
        if not self._borrow:
            return
        current = threading.current_thread()
        if self._borrower not in (None, current) and self._borrower.is_alive():
            raise InputError(
                f"This engine lends its outputs to the thread {self._borrower.name}: a call from "
                f"{current.name} would "
                "overwrite them.",
                hint="Use borrow=False, or an engine for each thread.",
            )
        self._borrower = current

    def _count_fallback(self, reason: str, shapes: Shapes | None) -> None:
        self._fallbacks[reason] += 1
        # Log nothing here: a bucket's own reason was logged when the bucket was built.
        if shapes is None or (reason, shapes) in self._logged or len(self._logged) >= _MAX_LOGGED:
            return
        self._logged.add((reason, shapes))
        log.warning(
            "runs eagerly for %s: %s", " and ".join("×".join(map(str, shape)) for shape in shapes), reason
        )

    def _stats(self) -> EngineStats:
        samples = self._timer.samples_s()
        built = list(self._built.values())
        captured = [one.graph for one in built if one.graph is not None]
        num_fallbacks = self._fallbacks.total()
        return EngineStats(
            num_calls=self._num_calls,
            num_hits=self._num_calls - num_fallbacks,
            num_padded=sum(one.num_padded for one in built),
            num_fallbacks=num_fallbacks,
            fallbacks=dict(self._fallbacks),
            buckets=tuple(
                BucketStats(*(getattr(one, field.name) for field in fields(BucketStats))) for one in built
            ),
            left_out=dict(self._left_out),
            num_folded=self._num_folded,
            tolerance=self._tolerance,
            weight_bytes=_num_bytes([*self._model.parameters(), *self._model.buffers()]),
            io_bytes=sum(_num_bytes([*one.inputs, *pytree.tree_leaves(one.outputs)]) for one in captured),
            pool_bytes=self._capturer.pool_bytes() if self._capturer is not None and captured else 0,
            p50_s=percentile(samples, 0.50),
            p99_s=percentile(samples, 0.99),
            num_timed=len(samples),
            dtype=next((one.name for one in self._tried if one.is_chosen), name_of(self.dtype)),
            tried=self._tried,
        )


class _After:
    """Context in which work on the current stream is ordered after all earlier work of the engine on any
    stream."""

    def __init__(self, done: torch.cuda.Event, device: torch.device) -> None:
        self._done = done
        self._stream = torch.cuda.current_stream(device)

    def __enter__(self) -> None:
        self._stream.wait_event(self._done)

    def __exit__(self, *error: object) -> None:
        # Also after an error: what was enqueued until then may still read the static tensors.
        self._done.record(self._stream)


def _capturer(device: torch.device) -> Capturer | None:
    return Capturer(device) if device.type == "cuda" else None


def _cut(outputs: Any, rows: int | None, batch: int | None) -> Any:
    if rows is None:
        return outputs
    return pytree.tree_map_only(
        torch.Tensor, lambda leaf: leaf[:rows] if leaf.dim() and leaf.shape[0] == batch else leaf, outputs
    )


def _cloned(outputs: Any) -> Any:
    if isinstance(outputs, torch.Tensor):
        return outputs.clone()
    return pytree.tree_map_only(torch.Tensor, torch.Tensor.clone, outputs)


def _num_bytes(leaves: list[Any]) -> int:
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves if isinstance(leaf, torch.Tensor))
