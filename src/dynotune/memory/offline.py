"""Predicts the memory of a process from the allocations that it made on a pretended GPU.

The sequence is replayed through the model of torch's allocator; what no allocation shows (context, modules, workspaces)
comes from the table of constants.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dynotune.memory import constants
from dynotune.memory.allocator import AllocatorSettings, CachingAllocator, OutOfMemory
from dynotune.schema.errors import RecordError
from dynotune.schema.facts import Unknown
from dynotune.schema.memory_prediction import (
    GpuModel,
    LargestBatch,
    MemoryPrediction,
    MemoryTerm,
    ModuleMemory,
    Verdict,
)

NUM_MODULES = 10
SPREAD = 0.03
"""Of activations and temporaries: kernels that take memory of their own are known in part only."""
_WORKSPACE = "cublas workspace"
_LARGEST_BATCH = 1 << 24
_CONVOLUTIONS = ("convolution", "cudnn_batch_norm", "native_batch_norm")
_ORDER = ("parameters", "buffers", "gradients", "optimizer states", "inputs", "activations", "temporaries")
_BY_ROLE = {
    "parameter": "parameters",
    "buffer": "buffers",
    "gradient": "gradients",
    "optimizer state": "optimizer states",
}


class Allocations(msgspec.Struct, frozen=True):
    """What the agent wrote: see `agent.fake.recorder`."""

    torch: str
    events: list[list[int]]
    words: list[str]
    roles: dict[str, str] = {}
    reads: dict[str, int] = {}
    notes: list[str] = []
    num_steps: int = 0
    reason: str = ""


def read(path: Path) -> Allocations:
    """The allocations in the file.

    Raises:
        RecordError: it cannot be read, or is damaged.
    """
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Allocations)
    except (OSError, msgspec.MsgspecError) as error:
        raise RecordError(f"{path} cannot be read: {error}.") from error
    known: set[int] = set()
    for event in found.events:
        words = event[2:] if len(event) == 5 else event[1:]
        is_sound = len(event) in (2, 5) and (event[0] in known) == (len(event) == 2)
        if not is_sound or event[1] < 0 or not all(0 <= word < len(found.words) for word in words):
            raise RecordError(f"{path} is damaged: {event} is no allocation and no release.")
        (known.add if len(event) == 5 else known.discard)(event[0])
    return found


def predict(found: Allocations, gpu: GpuModel, settings: AllocatorSettings | None = None) -> MemoryPrediction | Unknown:
    """What the process would have of the GPU's memory at its peak; Unknown where that cannot be said.

    Args:
        settings: of the allocator, as the command would have them.
    """
    settings = settings or AllocatorSettings()
    reason = found.reason or _unknown(found, settings)
    if reason:
        return Unknown(reason)
    workspace = constants.constant("cublas", "workspaces of cuBLAS", gpu, found.torch)
    replay = _replayed(found, settings, workspace.num_bytes, None)
    live = _live_at(found, replay.peak_at)
    terms = _terms(found, gpu, replay.model, live, workspace)
    peak = sum(term.num_bytes for term in terms)
    low, high = sum(term.low_bytes for term in terms), sum(term.high_bytes for term in terms)
    usable = gpu.total_bytes - gpu.reserved_bytes
    verdict: Verdict = "fits" if high <= usable else "too close"
    num_retries = 0
    if high > usable:
        # The allocator empties its cache before it gives up.
        room = usable - sum(term.low_bytes for term in terms if term.name in _OUTSIDE)
        tight = _replayed(found, settings, workspace.num_bytes, room)
        verdict = "does not fit" if tight.failed else verdict
        num_retries = tight.model.num_retries
    return MemoryPrediction(
        gpu=gpu,
        torch=found.torch,
        num_steps=found.num_steps,
        peak_bytes=peak,
        low_bytes=low,
        high_bytes=high,
        usable_bytes=usable,
        verdict=verdict,
        terms=terms,
        num_retries=num_retries,
        modules=_modules(found, live),
        reads=found.reads,
        notes=found.notes,
    )


def largest_batch(
    runs: Sequence[tuple[int, Allocations]], gpu: GpuModel, settings: AllocatorSettings | None = None
) -> LargestBatch:
    """The largest batch that fits, from the allocations at two batch sizes.

    If both runs made the same allocations, the sizes of each grow along a line, and any batch is replayed; its peak
    then has the allocator's steps. Else the peaks are taken to lie on a line.

    Args:
        runs: batch size and allocations of each.
    """
    (small, first), (large, second) = sorted(runs, key=lambda run: run[0])
    at = [predict(found, gpu, settings) for found in (first, second)]
    batches = (small, large)
    for result in at:
        if isinstance(result, Unknown):
            return LargestBatch(batches=batches, fits=result, may_fit=result, bytes_per_sample=result)
    ends = [result for result in at if isinstance(result, MemoryPrediction)]
    slope = (ends[1].peak_bytes - ends[0].peak_bytes) / (large - small)
    if slope <= 0:
        why = Unknown(
            f"the peak is the same with {small} and {large}: the argument does not change it, or they are too small"
        )
        return LargestBatch(batches=batches, fits=why, may_fit=why, bytes_per_sample=why)
    same = _shape(first) == _shape(second)

    def fits(batch: int, sure: bool) -> bool:
        if same:
            result = predict(_scaled(first, second, small, large, batch), gpu, settings)
            assert isinstance(result, MemoryPrediction)
            return result.verdict == "fits" if sure else result.verdict != "does not fit"
        ends_bytes = [end.high_bytes if sure else end.low_bytes for end in ends]
        per_sample = (ends_bytes[1] - ends_bytes[0]) / (large - small)
        return ends_bytes[0] + per_sample * (batch - small) <= ends[0].usable_bytes

    return LargestBatch(
        batches=batches,
        fits=_last(lambda batch: fits(batch, True)),
        may_fit=_last(lambda batch: fits(batch, False)),
        bytes_per_sample=round(slope),
    )


_OUTSIDE = ("CUDA context and modules", "cuDNN's modules and workspaces")


def _unknown(found: Allocations, settings: AllocatorSettings) -> str:
    if settings.backend != "native":
        return f"the allocator's backend is {settings.backend}: only torch's own is modelled"
    if not any(len(event) == 5 for event in found.events):
        return "the command put nothing on the GPU"
    return ""


@dataclass
class _Replay:
    """A replayed sequence. `peak_at`: number of the allocation that made the peak; `failed`: the limit was too low."""

    model: CachingAllocator
    peak_at: int = -1
    failed: bool = False


def _replayed(found: Allocations, settings: AllocatorSettings, workspace_bytes: int, limit: int | None) -> _Replay:
    model = CachingAllocator(settings, limit_bytes=limit)
    replay = _Replay(model)
    word = found.words.index(_WORKSPACE) if _WORKSPACE in found.words else -1
    for event in found.events:
        if len(event) == 2:
            model.release(event[0])
            continue
        before = model.peak_allocated_bytes
        try:
            model.allocate(event[0], workspace_bytes if event[4] == word else event[1])
        except OutOfMemory:
            replay.failed = True
            return replay
        if model.peak_allocated_bytes > before:
            replay.peak_at = event[0]
    return replay


def _live_at(found: Allocations, number: int) -> list[list[int]]:
    """The allocations that live once the one with this number is made."""
    live: dict[int, list[int]] = {}
    for event in found.events:
        if len(event) == 2:
            del live[event[0]]
        else:
            live[event[0]] = event
            if event[0] == number:
                break
    return list(live.values())


def _freed_in(found: Allocations) -> dict[int, str]:
    return {event[0]: found.words[event[1]] for event in found.events if len(event) == 2}


def _term_of(event: Sequence[int], found: Allocations, freed_in: dict[int, str]) -> str:
    number, _, phase, module, what = event
    role = found.roles.get(str(number))
    if role is not None:
        return _BY_ROLE[role]
    if found.words[what] == _WORKSPACE:
        return _WORKSPACE
    if found.words[what] == "from host":
        return "inputs"
    is_saved = freed_in.get(number) == "backward" or bool(found.words[module])
    return "activations" if found.words[phase] == "forward" and is_saved else "temporaries"


def _modules(found: Allocations, live: Sequence[Sequence[int]]) -> list[ModuleMemory]:
    freed_in, held = _freed_in(found), Counter[str]()
    for event in live:
        if _term_of(event, found, freed_in) == "activations":
            held[found.words[event[3]] or "outside of modules"] += event[1]
    return [ModuleMemory(name, num_bytes) for name, num_bytes in held.most_common(NUM_MODULES)]


def _terms(
    found: Allocations, gpu: GpuModel, model: CachingAllocator, live: Sequence[Sequence[int]], workspace: MemoryTerm
) -> list[MemoryTerm]:
    freed_in = _freed_in(found)
    sums: Counter[str] = Counter()
    for event in live:
        sums[_term_of(event, found, freed_in)] += event[1]
    num_workspaces = sum(found.words[event[4]] == _WORKSPACE for event in live)
    requested = sum(sums.values()) + num_workspaces * workspace.num_bytes
    terms = [constants.constant("context", _OUTSIDE[0], gpu, found.torch)]
    operators = {found.words[event[4]] for event in found.events if len(event) == 5}
    if operators.intersection(_CONVOLUTIONS):
        terms.append(constants.constant("cudnn", _OUTSIDE[1], gpu, found.torch))
    if num_workspaces:
        terms.append(constants.constant("cublas", workspace.name, gpu, found.torch, times=num_workspaces))
    for name in _ORDER:
        spread = round(sums[name] * SPREAD) if name in ("activations", "temporaries") else 0
        if sums[name]:
            terms.append(_term(name, sums[name], spread))
    rounding = model.peak_allocated_bytes - requested
    cache = model.peak_reserved_bytes - model.peak_allocated_bytes
    terms.append(_term("rounding to blocks", rounding, 0))
    terms.append(
        _term("free in the allocator's segments", cache, 0, "reserved, and free at the peak or too small a piece")
    )
    return terms


def _term(name: str, num_bytes: int, spread: int, why: str = "") -> MemoryTerm:
    return MemoryTerm(
        name=name, num_bytes=num_bytes, low_bytes=num_bytes - spread, high_bytes=num_bytes + spread, why=why
    )


def _shape(found: Allocations) -> list[tuple[int, ...]]:
    """What two runs must share for their sizes to be compared one by one."""
    return [(len(event), event[0]) for event in found.events]


def _scaled(first: Allocations, second: Allocations, small: int, large: int, batch: int) -> Allocations:
    share = (batch - small) / (large - small)
    events = [
        [one[0], max(0, round(one[1] + (two[1] - one[1]) * share)), *one[2:]] if len(one) == 5 else one
        for one, two in zip(first.events, second.events, strict=True)
    ]
    return msgspec.structs.replace(first, events=events)


def _last(fits: Callable[[int], bool]) -> int:
    """The largest batch up to which all fit."""
    low, high = 0, 1
    while high < _LARGEST_BATCH and fits(high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
