"""What a command would take of a GPU's memory, predicted without one."""

from __future__ import annotations

from typing import Literal

import msgspec

from dynotune.schema.facts import Unknown

Verdict = Literal["fits", "too close", "does not fit"]


class GpuModel(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU as `--gpu` names it.

    Args:
        total_bytes: as the driver says it; `reserved_bytes` of it no process can have.
        compute_capability: None where only a size was given.
        source: of the figures.
    """

    name: str
    total_bytes: int
    reserved_bytes: int = 0
    compute_capability: tuple[int, int] | None = None
    num_multiprocessors: int = 0
    source: str = ""


class MemoryTerm(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the peak.

    Args:
        low_bytes, high_bytes: what it is at least and at most.
        why: where the figure comes from, or why it is uncertain; may be empty.
    """

    name: str
    num_bytes: int
    low_bytes: int
    high_bytes: int
    why: str = ""


class ModuleMemory(msgspec.Struct, frozen=True):
    """Bytes of activations at the peak that a module of the model holds."""

    module: str
    num_bytes: int


class MemoryPrediction(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of one process at its peak, as `nvidia-smi` would show it.

    Args:
        terms: add up to `peak_bytes`.
        usable_bytes: of the GPU, for one process alone on it.
        verdict: of the interval `low_bytes` to `high_bytes` and `usable_bytes`.
        num_retries: how often the allocator would have to empty its cache on this GPU.
        modules: those with the most activations, the largest first.
        reads: places where the program reads a value that only the GPU would know, and how often; they were answered
            with a constant, so what depends on it may be otherwise.
        notes: what else makes the prediction uncertain.
    """

    schema: str = "dynotune.memory_prediction/1"
    gpu: GpuModel
    torch: str
    num_steps: int
    peak_bytes: int
    low_bytes: int
    high_bytes: int
    usable_bytes: int
    verdict: Verdict
    terms: list[MemoryTerm]
    num_retries: int = 0
    modules: list[ModuleMemory] = []
    reads: dict[str, int] = {}
    notes: list[str] = []


class LargestBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The largest batch that fits.

    Args:
        batches: those that were run on the pretended GPU.
        fits: with the upper end of the interval; `may_fit` with the lower end. 0 where not even one does.
        bytes_per_sample: of the peak.
    """

    batches: tuple[int, int]
    fits: int | Unknown
    may_fit: int | Unknown
    bytes_per_sample: int | Unknown
