"""Build an engine's buckets: for each, the fastest requested way that works, checked against the eager
model."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from dynotune.runtime.engine import graphs
from dynotune.runtime.engine.buckets import Bucket, Shapes
from dynotune.runtime.engine.prepare import Inputs, Prepared, compare
from dynotune.runtime.engine.stats import Mode
from dynotune.runtime.errors import CaptureError, InputError, NumericsError

log = logging.getLogger("dynotune.runtime")

OneCompile = bool | str | Mapping[str, Any]
Compile = OneCompile | Sequence[OneCompile] | None

# Types of outputs that a replay can return unchanged, as they were at the capture.
_CONSTANTS = (type(None), bool, int, float, str)
# These capture graphs of their own, which cannot be captured into the engine's.
_MODES_WITH_GRAPHS = ("reduce-overhead", "max-autotune")


class _Forward(NamedTuple):
    """The model, eager or compiled. `wanted`: it was requested; otherwise it is only used if nothing else
    works."""

    name: str
    call: Callable[..., Any]
    compiled: bool
    wanted: bool = True


class _Way(NamedTuple):
    graph: bool
    forward: _Forward

    def __str__(self) -> str:
        return ("captured " if self.graph else "") + self.forward.name


@dataclass(slots=True, eq=False)
class Built:
    """The runner of one bucket, as described in `BucketStats`; `forward` runs if there is no `graph`."""

    bucket: Bucket
    mode: Mode
    way: str
    compiled: bool
    forward: Callable[..., Any]
    graph: graphs.CapturedGraph | None = None
    reason: str = ""
    error: float = 0.0
    build_s: float = 0.0
    num_hits: int = 0
    num_padded: int = 0

    @property
    def shapes(self) -> Shapes:
        return self.bucket.shapes

    def reset(self) -> None:
        """Free the graph. The graph must not be running."""
        if self.graph is not None:
            self.graph.reset()


def prepared_input(
    tensor: torch.Tensor, dtype: torch.dtype, device: torch.device, channels_last: bool
) -> torch.Tensor:
    """Return `tensor` converted as the model requires; the same tensor if nothing changes."""
    if channels_last and tensor.dim() == 4 and tensor.is_floating_point():
        return tensor.to(device, dtype, memory_format=torch.channels_last)
    return tensor.to(device, dtype)


def _forwards(model: torch.nn.Module, compile: Compile, device: torch.device) -> list[_Forward]:
    """List the ways to run the model, in the order of trying; the eager model is always among them.

    Raises InputError if torch.compile does not take an argument, or a mode captures graphs of its own.
    """
    if compile is None:
        compile = device.type == "cuda"
    elif compile == "measure":
        compile = (True, False)
    wanted = compile if isinstance(compile, Sequence) and not isinstance(compile, str) else [compile]
    if not wanted:
        raise InputError("compile is an empty list.", hint="Name what to try, such as [True, False].")
    found: list[_Forward] = []
    for one in wanted:
        arguments = _arguments(one)
        name = "eager" if arguments is None else "compiled"
        if arguments and len(wanted) > 1:
            name += f" ({', '.join(str(value) for value in arguments.values())})"
        call = model if arguments is None else _compiled(model, arguments)
        found.append(_Forward(name, call, compiled=arguments is not None))
    if all(forward.compiled for forward in found):
        found.append(_Forward("eager", model, compiled=False, wanted=False))
    return found


def _arguments(compile: OneCompile) -> dict[str, Any] | None:
    """Return the requested arguments of `torch.compile`; None for no compilation."""
    if isinstance(compile, bool):
        return {} if compile else None
    arguments = dict(compile) if isinstance(compile, Mapping) else {"mode": compile}
    if arguments.get("mode") in _MODES_WITH_GRAPHS:
        raise InputError(
            f"compile mode {arguments['mode']!r} captures graphs of its own, which the engine does too.",
            hint='Use compile=True or "max-autotune-no-cudagraphs"; the engine captures either.',
        )
    return arguments


def _compiled(model: torch.nn.Module, arguments: dict[str, Any]) -> Callable[..., Any]:
    try:
        return torch.compile(model, **{"dynamic": False, **arguments})  # type: ignore[no-any-return]
    except (RuntimeError, TypeError, ValueError) as error:
        raise InputError(
            f"torch.compile does not take {arguments}: {error}", hint="See its documentation."
        ) from error


class Builder:
    """Builds the `Built` of each bucket; all share one pool of graph memory.

    `capturer`: makes graphs; None for no graphs. `run`: runs a bucket on inputs as a call does, for the
        check.
    """

    def __init__(
        self,
        prepared: Prepared,
        *,
        compile: Compile,
        capturer: graphs.Capturer | None,
        tune_convolutions: bool,
        run: Callable[[Built, Inputs], Any],
    ) -> None:
        self._prepared = prepared
        self._run = run
        self._capturer = capturer
        self._tunes = tune_convolutions and prepared.device.type == "cuda"
        self._forwards = _forwards(prepared.model, compile, prepared.device)
        self._compiles = any(forward.compiled for forward in self._forwards)

    def build(self, bucket: Bucket) -> Built:
        """Build the bucket, and check its outputs.

        Raises:
            NumericsError: if the prepared model exceeds the tolerance in every way, eager included.
            torch.OutOfMemoryError: if the bucket does not fit.
        """
        started = time.perf_counter()
        with tuned_convolutions(self._tunes), _no_recompile_limit(self._compiles):
            built = self._fastest(bucket)
        built.build_s = time.perf_counter() - started
        if built.reason:
            log.warning("bucket %s runs %s: %s", bucket, built.mode, built.reason)
        return built

    def _ways(self) -> Iterator[_Way]:
        seen = self._prepared.observation
        if self._capturer is not None and not seen.waits:
            # What copies from the host can be captured only where compiling takes the copy away.
            yield from (
                _Way(True, forward) for forward in self._forwards if forward.compiled or not seen.uploads
            )
        yield from (_Way(False, forward) for forward in self._forwards)

    def _fastest(self, bucket: Bucket) -> Built:
        """Return the fastest of the requested ways, or the first other way that works."""
        reasons = []
        seen = self._prepared.observation
        if self._capturer is not None and seen.waits:
            reasons.append(f"no graph, because the host waits for the GPU: {seen.waits[0]}")
        elif self._capturer is not None and seen.uploads and not self._compiles:
            reasons.append(f"no graph, because it copies from the host: {seen.uploads[0]}")
        found: list[Built] = []
        ways = list(self._ways())
        for way in ways:
            if found and (way.graph != (found[0].graph is not None) or not way.forward.wanted):
                break
            built, why = self._attempt(bucket, way, is_last=way is ways[-1])
            if built is not None:
                found.append(built)
            elif not found:
                reasons.append(f"{way}: {why}")
        best = found[0] if len(found) == 1 else self._faster(found)
        best.reason = "; ".join(reasons)
        return best

    def _attempt(self, bucket: Bucket, way: _Way, is_last: bool) -> tuple[Built | None, str]:
        """Build the bucket in one way, or return why that failed. If `last`, raise instead."""
        built: Built | None = None
        why = ""
        try:
            built = self._make(bucket, way)
            cases = self._prepared.expected[bucket]
            built.error = max(compare(case, self._prepared, self._run(built, case.inputs)) for case in cases)
            if built.error <= self._prepared.tolerance:
                return built, ""
            why = f"outputs differ from the eager model's by {built.error:.2g}"
            if is_last:
                self._refuse(built)
        except torch.cuda.OutOfMemoryError:
            raise
        except (CaptureError, NumericsError) as error:
            if is_last:
                raise
            why = error.message
        except Exception as error:
            # The eager model ran on these inputs: it is compiling that fails, in whatever way it likes.
            if not way.forward.compiled:
                raise
            why = f"{type(error).__name__}: {graphs.first_line(error)}"
        if built is not None:
            built.reset()
        return None, why

    def _refuse(self, built: Built) -> None:
        dtype = str(self._prepared.dtype).removeprefix("torch.")
        raise NumericsError(
            f"In {dtype} the outputs for the bucket {built.bucket} differ from the eager model's by "
            f"{built.error:.2g}, "
            f"more than the tolerance {self._prepared.tolerance:.2g}.",
            hint="Use a wider dtype (bfloat16 where float16 overflows), state a tolerance that you accept, "
            "or, where "
            "outputs are indices or sorted, an error measure of your own.",
        )

    def _make(self, bucket: Bucket, way: _Way) -> Built:
        prepared = self._prepared
        call, compiled = way.forward.call, way.forward.compiled
        if not way.graph:
            return Built(bucket, "compiled" if compiled else "eager", str(way), compiled, call)
        inputs = tuple(
            prepared_input(tensor, dtype, prepared.device, prepared.channels_last).clone()
            for tensor, dtype in zip(prepared.expected[bucket][0].inputs, bucket.dtypes, strict=True)
        )
        graph = self._captured(call, inputs)
        return Built(bucket, "graph", str(way), compiled, call, graph)

    def _captured(self, forward: Callable[..., Any], inputs: Inputs) -> graphs.CapturedGraph:
        assert self._capturer is not None
        graph = self._capturer(forward, inputs, lambda: graphs.kept_tensors(self._prepared.model))
        for leaf in pytree.tree_leaves(graph.outputs):
            if not isinstance(leaf, (torch.Tensor, *_CONSTANTS)):
                graph.reset()
                raise CaptureError(f"an output is a {type(leaf).__name__}, which a replay cannot make anew.")
        return graph

    def _faster(self, found: list[Built]) -> Built:
        captured = [built.graph for built in found if built.graph is not None]
        if captured and self._capturer is not None:
            times = self._capturer.replay_s(captured)
        else:
            times = [self._call_s(built) for built in found]
        best = found[times.index(min(times))]
        for built in found:
            if built is not best:
                built.reset()
        return best

    def _call_s(self, built: Built) -> float:
        times = []
        for _ in range(5):
            started = time.perf_counter()
            self._run(built, self._prepared.expected[built.bucket][0].inputs)
            if self._prepared.device.type == "cuda":
                torch.cuda.synchronize(self._prepared.device)
            times.append(time.perf_counter() - started)
        return sorted(times)[len(times) // 2]


@contextmanager
def tuned_convolutions(wanted: bool) -> Iterator[None]:
    """Let cuDNN time its algorithms on the bucket's own shapes; the graph keeps the chosen algorithms."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = before or wanted
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


@contextmanager
def _no_recompile_limit(compiles: bool) -> Iterator[None]:
    """Lift torch's limit on recompilations, so that every bucket is compiled. torch counts all versions of
    one `forward`, also those of other engines, and silently runs every version beyond the eighth eagerly."""
    if not compiles:
        yield
        return
    from torch._dynamo import config

    # Up to torch 2.6 it is called cache_size_limit.
    name = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"
    with config.patch({name: 1 << 20, f"accumulated_{name}": 1 << 20}):
        yield
