"""Describe an engine and its buckets."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["BucketStats", "DtypeTried", "EngineStats", "Mode"]

Mode = Literal["graph", "compiled", "eager"]


@dataclass(frozen=True, slots=True)
class BucketStats:
    """One bucket of an engine.

    Args:
        shapes: shapes of the inputs.
        mode: "graph" (captured), "compiled" (without a graph) or "eager".
        way: the mode in more detail, such as "captured compiled (max-autotune-no-cudagraphs)".
        compiled: whether the model that runs, or was captured, was compiled by torch.compile.
        reason: why the bucket does not run as requested; empty if it does.
        error: largest error against the eager model, found during the build.
        build_s: seconds of the build, including compilation.
        num_hits: number of calls that the bucket served; `num_padded` of these calls were padded.
    """

    shapes: tuple[tuple[int, ...], ...]
    mode: Mode
    way: str
    compiled: bool
    reason: str
    error: float
    build_s: float
    num_hits: int
    num_padded: int


@dataclass(frozen=True, slots=True)
class DtypeTried:
    """One dtype, or one 8-bit type of torchao, that `dtype="auto"` tried; the model's own comes first.

    Args:
        error: largest error against the model in float64; None if it was not measured.
        speedup: speed-up over the model's own dtype; None if it was not timed.
        reason: why the dtype was chosen or not.
    """

    name: str
    error: float | None
    speedup: float | None
    reason: str
    is_chosen: bool = False


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Description of an engine and totals of its calls.

    Args:
        num_calls: number of calls that returned.
        num_hits: number of calls that a bucket served in the requested way; `num_padded` of these were
            padded.
        num_fallbacks: number of all other calls; `fallbacks` counts these calls by reason.
        buckets: buckets that were built, largest first.
        left_out: buckets that were not built, with the reasons.
        num_folded: number of convolutions that absorbed a BatchNorm.
        tolerance: largest error accepted during the build.
        weight_bytes: bytes of parameters and buffers of the model that runs.
        io_bytes: bytes of the static inputs and outputs of all graphs.
        pool_bytes: device memory reserved for all graphs, including their outputs.
        p50_s, p99_s: seconds per call: on a GPU, device time of sampled calls from the copy in to the copy
            out; on the CPU, wall time of every call. Percentiles of the newest 4,096 samples; None before the
            first.
        num_timed: number of timed calls.
        dtype: dtype that runs, or "int8" or "fp8"; `tried`: dtypes that "auto" tried.
    """

    num_calls: int
    num_hits: int
    num_padded: int
    num_fallbacks: int
    fallbacks: dict[str, int]
    buckets: tuple[BucketStats, ...]
    left_out: dict[str, str]
    num_folded: int
    tolerance: float
    weight_bytes: int
    io_bytes: int
    pool_bytes: int
    p50_s: float | None
    p99_s: float | None
    num_timed: int
    dtype: str = ""
    tried: tuple[DtypeTried, ...] = ()
