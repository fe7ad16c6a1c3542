"""What an engine says of itself."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["BucketStats", "DtypeTried", "EngineStats", "Mode"]

Mode = Literal["graph", "compiled", "eager"]


@dataclass(frozen=True, slots=True)
class BucketStats:
    """One bucket of an engine.

    Args:
        shapes: of its inputs.
        mode: "graph" (captured), "compiled" (without a graph) or "eager".
        way: the same in more words, such as "captured compiled (max-autotune-no-cudagraphs)".
        compiled: whether torch.compile made what runs, or what was captured.
        reason: why it does not run as asked; empty when it does.
        error: largest error against the eager model that was found at build.
        build_s: time that building took, compiling included.
        num_hits: calls it served, `num_padded` of them filled up.
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
    """One dtype, or 8 bits by torchao, that `dtype="auto"` tried, the model's own first.

    Args:
        error: the largest against the model in float64; None where there is none.
        speedup: over the model's own dtype; None where it was not timed.
        reason: what came of it.
    """

    name: str
    error: float | None
    speedup: float | None
    reason: str
    is_chosen: bool = False


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Description of an engine and what it has done.

    Args:
        num_calls: calls that returned.
        num_hits: those that a bucket served in the way asked; `num_padded` were filled up.
        num_fallbacks: the others, by reason in `fallbacks`.
        buckets: those that were built, largest first.
        left_out: buckets that were not, with the reason.
        num_folded: convolutions that took a BatchNorm in.
        tolerance: the largest error accepted at build.
        weight_bytes: parameters and buffers of the model that runs.
        io_bytes: static inputs and outputs of all graphs.
        pool_bytes: device memory reserved for all graphs, their outputs included.
        p50_s, p99_s: time of a call: on a GPU device time from the copy in to the copy out, of sampled calls; on the
            CPU wall time of every call. Of the newest 4,096 samples; None before the first.
        num_timed: samples that these stand on.
        dtype: that runs, "int8" and "fp8" among them; `tried`: what "auto" tried.
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
