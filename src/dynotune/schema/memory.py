"""Where device memory goes and what fits: what `dynotune memory` says. Defined in docs/guides/memory.md."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from dynotune.schema.facts import Unknown

# fmt: off
TermName = Literal[
    "weights", "gradients", "optimizer", "buffers", "inputs", "activations", "temporary", "kept", "workspaces",
    "blocks", "graph-pools", "rounding", "cache", "fragmentation", "context", "unknown",
]
# fmt: on
ORDER: tuple[TermName, ...] = get_args(TermName)
"""As they are told. `blocks` are those of a snapshot, which does not say whose they are."""

Verdict = Literal["fits", "too-close", "does-not-fit"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


class Term(msgspec.Struct, frozen=True, kw_only=True):
    """One part of the memory of a process.

    Args:
        modules, lines: bytes by who allocated them, the largest first; empty where that was not recorded.
    """

    name: TermName
    num_bytes: int
    modules: dict[str, int] = {}
    lines: dict[str, int] = {}


class Moment(msgspec.Struct, frozen=True, kw_only=True, tag="moment"):
    """The memory of a process at one moment, in terms that add up.

    Args:
        process_bytes: what the driver counts for the process; Unknown where it does not say: then the terms add up to
            `reserved_bytes`, the allocator's.
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
        events: number of allocations and releases before each point; `steps`: before each step's end.
        bytes: by term, as long as `events`.
        modules: where the newest block at each point came from; "" outside of modules.
    """

    events: list[int]
    bytes: dict[str, list[int]]
    modules: list[str]
    steps: list[int]


class RankMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of one process on one device. None is what a snapshot does not tell.

    Args:
        device: CUDA's number; `total_bytes`: its memory; `others_bytes`: what other processes hold there.
        peak, steady: at the highest level within the recorded steps, and between two steps.
        trains: an optimizer stepped, or gradients were there.
        num_samples: of the largest recorded step.
        step_s: median of the recorded steps; `before_s`: of those before, so that recording's cost is seen.
        spread_bytes: by which the peak is uncertain, where it is of a pretended GPU.
        facts: that the `memory-…` findings ask for; docs/guides/memory.md defines each.
    """

    rank: int | None = None
    pid: int | None = None
    device: int
    total_bytes: int | None = None
    others_bytes: int | Unknown = Unknown("a snapshot does not tell")
    peak: Moment | Unknown = Unknown("there is no history")
    steady: Moment | Unknown = Unknown("there is no history")
    levels: Levels | Unknown = Unknown("there is no history")
    trains: bool | None = None
    num_samples: int | None = None
    step_s: float | None = None
    before_s: float | None = None
    spread_bytes: int = 0
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
    facts: dict[str, bool | int | float | str | None]
    notes: list[str]


class Outside(msgspec.Struct, frozen=True, kw_only=True):
    """What a process has on a GPU besides torch's allocator, as far as it is known; `notes`: where that is from."""

    low_bytes: int
    num_bytes: int
    high_bytes: int
    notes: list[str]


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """One batch on one card: bytes of the process, predicted, and measured where it was run."""

    batch: int
    num_bytes: int
    measured_bytes: int | Unknown = Unknown("it was not run")
    verdict: Verdict


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the largest batch when it was run for `num_steps` steps, and of the next one.

    Args:
        next_ended: "out-of-memory", "over-margin" or "fits"; the last says that the prediction was too careful.
    """

    batch: int
    num_steps: int
    ran: bool
    num_bytes: int | Unknown
    next_ended: str


class Capacity(msgspec.Struct, frozen=True, kw_only=True, tag="capacity"):
    """What fits on one card.

    Args:
        card: as asked for, or the device's own.
        limit_bytes: of the card less what other processes hold; `margin_bytes`: kept free of it.
        measured: peaks of the runs that the model was made from, by batch.
        residual: largest error of the model on these, as a share.
        largest: batch that fits with the margin.
    """

    card: str
    limit_bytes: int
    margin_bytes: int
    measured: dict[int, Moment]
    residual: float
    largest: int | Unknown
    fits: list[Fit]
    proof: Proof | None = None


class Processes(msgspec.Struct, frozen=True, kw_only=True, tag="processes"):
    """How many processes of the command one card carries; `most`: the smaller bound.

    Args:
        one_per_s, two_per_s: samples (steps, where they are not counted) of one alone, and of two together.
        asked_per_s: that each must make; None if it was not asked.
    """

    one_per_s: float
    two_per_s: float
    asked_per_s: float | None
    by_memory: int | Unknown
    by_throughput: int
    most: int
