"""Where device memory goes and what fits: what `dynotune memory` says. Defined in docs/guides/memory.md."""

from __future__ import annotations

from typing import Literal

import msgspec

from dynotune.schema.facts import Unknown

TermName = Literal[
    "context",
    "workspaces",
    "weights",
    "gradients",
    "optimizer",
    "buffers",
    "inputs",
    "activations",
    "temporary",
    "kept",
    "graph-pools",
    "rounding",
    "cache",
    "fragmentation",
    "unknown",
]
Verdict = Literal["fits", "too-close", "does-not-fit"]


class Part(msgspec.Struct, frozen=True):
    """Bytes of a term that one module, or one line of the program, allocated."""

    name: str
    num_bytes: int


class Term(msgspec.Struct, frozen=True, kw_only=True):
    """One part of the memory of a process.

    Args:
        modules, lines: who allocated it, the largest first; empty where that was not recorded.
    """

    name: TermName
    num_bytes: int
    modules: list[Part] = []
    lines: list[Part] = []


class Moment(msgspec.Struct, frozen=True, kw_only=True, tag="moment"):
    """The memory of a process at one moment, in terms that add up.

    Args:
        process_bytes: what the driver counts for the process; Unknown where it does not say, and then the terms add up
            to what the allocator had reserved.
        reserved_bytes: of the allocator.
        requested_bytes: of live blocks, as the program asked for them.
    """

    process_bytes: int | Unknown
    reserved_bytes: int
    requested_bytes: int
    terms: list[Term]

    def of(self, name: TermName) -> int:
        """Bytes of one term; 0 where it is not there."""
        return sum(term.num_bytes for term in self.terms if term.name == name)

    @property
    def total_bytes(self) -> int:
        return sum(term.num_bytes for term in self.terms)


class Levels(msgspec.Struct, frozen=True, kw_only=True, tag="levels"):
    """Terms over the recorded steps, for the plot: live blocks by term.

    Args:
        events: number of allocations and releases before each point.
        bytes: by term, as long as `events`.
        modules: where the newest block at each point came from; "" outside of modules.
        steps: number of events before each step's end.
    """

    events: list[int]
    bytes: dict[str, list[int]]
    modules: list[str]
    steps: list[int]


class HookCost(msgspec.Struct, frozen=True, kw_only=True):
    """What recording cost: a recorded step against one before it, and host memory. It allocates nothing on the device.

    Args:
        step_s: median of the recorded steps; `before_s`: of those before, None where it is not known.
    """

    step_s: float
    before_s: float | None = None
    host_bytes: int = 0


class RankMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of one process on one device.

    Args:
        device: CUDA's number; `total_bytes`: its memory.
        others_bytes: what other processes hold there.
        peak, steady: at the highest level within the recorded steps, and between two steps.
        trains: an optimizer stepped, or gradients were there.
        num_samples: of the largest recorded step.
        facts: that the `memory-…` findings ask for; docs/guides/memory.md defines each.
    """

    rank: int | None = None
    pid: int
    device: int
    total_bytes: int
    others_bytes: int | Unknown
    peak: Moment | Unknown
    steady: Moment | Unknown
    trains: bool
    num_samples: int | None = None
    levels: Levels | Unknown
    hooks: HookCost
    facts: dict[str, bool | int | float | str | None] = {}
    notes: list[str] = []


class DeviceOwners(msgspec.Struct, frozen=True, kw_only=True):
    """Whose blocks are on one device, as the agent tells it.

    A position is the number of allocations and releases of the process so far.

    Args:
        marks: (`begin`, `forward`, `forward_end`, `update` or `step`, position); an update lasts until the next mark.
        owners: (term, address, position at which the block at that address was the term's).
        num_events: position of the snapshot; `reserved_bytes`: of the allocator then.
        free_bytes, total_bytes: of the device then, as CUDA says.
    """

    device: int
    marks: list[tuple[str, int]]
    owners: list[tuple[TermName, int, int]]
    num_events: int
    reserved_bytes: int
    free_bytes: int
    total_bytes: int


class Owners(msgspec.Struct, frozen=True, kw_only=True):
    """`memory-….json` in the run folder, beside the snapshot of the same name."""

    schema: str = "dynotune.memory_owners/1"
    devices: list[DeviceOwners]
    trains: bool
    num_samples: int | None
    step_s: list[float]
    host_bytes: int
    facts: dict[str, bool | int | float | str | None]
    notes: list[str]


class OutOfMemory(msgspec.Struct, frozen=True, kw_only=True):
    """What torch says of an allocation that failed. None where its message does not tell.

    Args:
        asked_bytes: by the allocation; `total_bytes`, `free_bytes`: of the device.
        process_bytes: of the process, its context included; `others_bytes`: of other processes.
        allocated_bytes: in live tensors; `pools_bytes`: in private pools, as of CUDA graphs.
        split_bytes: reserved, and free only in pieces or in pools that this allocation could not use.
        allowed_bytes: limit that the program set itself.
        batch_at_most: upper bound of the batch that would have fitted.
    """

    asked_bytes: int
    device: int | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    process_bytes: int | None = None
    others_bytes: int | None = None
    allocated_bytes: int | None = None
    pools_bytes: int | None = None
    split_bytes: int | None = None
    allowed_bytes: int | None = None
    batch_at_most: int | None = None


class TermModel(msgspec.Struct, frozen=True, kw_only=True):
    """One term against the batch: `constant_bytes + per_sample_bytes * batch`."""

    name: TermName
    constant_bytes: float
    per_sample_bytes: float


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """One batch on one card.

    Args:
        num_bytes: of the process, predicted; `measured_bytes`: where it was run.
    """

    batch: int
    num_bytes: int
    measured_bytes: int | Unknown = Unknown("it was not run")
    verdict: Verdict


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that was run: the process's memory at the peak, what the driver counts where it says."""

    batch: int
    peak: Moment


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the largest batch, and of the next one, when they were run for `num_steps` steps.

    Args:
        next_ended: "out-of-memory", "over-margin" or "fits"; the last says that the prediction was too careful.
    """

    batch: int
    num_steps: int
    ran: bool
    num_bytes: int | Unknown
    next_batch: int
    next_ended: str


class Capacity(msgspec.Struct, frozen=True, kw_only=True, tag="capacity"):
    """What fits on one card.

    Args:
        card: as asked for, or the device's own.
        limit_bytes: of the card less what other processes hold; `margin_bytes`: kept free of it.
        measured: the runs that the model was made from.
        largest: batch that fits with the margin.
        residual: largest error of the model on the runs it was made from, as a share.
    """

    card: str
    limit_bytes: int
    margin_bytes: int
    measured: list[Measured]
    terms: list[TermModel]
    residual: float
    largest: int | Unknown
    fits: list[Fit]
    proof: Proof | None = None


class Processes(msgspec.Struct, frozen=True, kw_only=True, tag="processes"):
    """How many processes of the command one card carries.

    Args:
        one_per_s, two_per_s: samples (steps, where they are not counted) of one alone, and of two together.
        asked_per_s: that each must make; None if it was not asked.
        most: the smaller bound.
    """

    one_per_s: float
    two_per_s: float
    asked_per_s: float | None
    by_memory: int | Unknown
    by_throughput: int
    most: int
