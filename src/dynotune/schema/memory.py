"""Documents of `dynotune memory`: the account of device memory, and what fits. Defined in
docs/reference/records.md."""

from typing import Literal, get_args

import msgspec

from dynotune.schema.facts import Unknown

# fmt: off
TermName = Literal[
    "weights", "gradients", "optimizer", "buffers", "inputs", "activations", "temporary", "kept", "workspaces",  # noqa: E501
    "blocks", "graph-pools", "rounding", "cache", "fragmentation", "context", "unknown",
]
# fmt: on
ORDER: tuple[TermName, ...] = get_args(TermName)
"""Memory terms in the order of display. `blocks`: memory blocks of a snapshot whose owners are not known."""

Verdict = Literal["fits", "too-close", "does-not-fit"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


class Term(msgspec.Struct, frozen=True, kw_only=True):
    """One memory term: bytes of a process for one purpose. `modules` and `lines` are empty if not recorded.

    Args:
        modules, lines: the modules and the source lines with most of the term's bytes.
        blocks: for activations, the bytes of each module in a list (`layers.0`, `layers.1`), submodules
            included.
    """

    name: TermName
    num_bytes: int
    modules: dict[str, int] = {}
    blocks: dict[str, int] = {}
    lines: dict[str, int] = {}


class Moment(msgspec.Struct, frozen=True, kw_only=True, tag="moment"):
    """The memory of a process at one point in time, split into terms that add up to the total."""

    process_bytes: int | Unknown
    reserved_bytes: int
    requested_bytes: int
    terms: list[Term]

    def of(self, name: TermName) -> int:
        """Return the bytes of one memory term; 0 if the term is absent."""
        return sum(term.num_bytes for term in self.terms if term.name == name)

    @property
    def total_bytes(self) -> int:
        return sum(term.num_bytes for term in self.terms)


class RankMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of one process on one device. None: a value that a snapshot does not contain."""

    rank: int | None = None
    pid: int | None = None
    device: int
    total_bytes: int | None = None
    others_bytes: int | Unknown = Unknown("a snapshot does not tell")
    peak: Moment | Unknown = Unknown("there is no history")
    steady: Moment | Unknown = Unknown("there is no history")
    trains: bool | None = None
    num_samples: int | None = None
    step_s: float | None = None
    before_s: float | None = None
    spread_bytes: int = 0
    facts: dict[str, bool | int | float | str | None] = {}
    notes: list[str] = []


class DeviceOwners(msgspec.Struct, frozen=True, kw_only=True):
    """Owners of the memory blocks on one device, as the agent reports them."""

    device: int
    marks: list[tuple[str, int]]
    owners: list[tuple[TermName, int, int]]
    num_events: int
    reserved_bytes: int
    free_bytes: int
    total_bytes: int


class Owners(msgspec.Struct, frozen=True, kw_only=True):
    """Document `memory-….json` in the run folder: owners of memory, beside the snapshot of the same name."""

    schema: str = "dynotune.memory_owners/1"
    devices: list[DeviceOwners]
    trains: bool
    num_samples: int | None
    step_s: list[float]
    facts: dict[str, bool | int | float | str | None]
    notes: list[str]


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """Whether one batch size fits on one card."""

    batch: int
    num_bytes: int
    measured_bytes: int | Unknown = Unknown("it was not run")
    verdict: Verdict


class Capacity(msgspec.Struct, frozen=True, kw_only=True, tag="capacity"):
    """Capacity of one card: the batch sizes that fit. `measured`: measured peak memory by batch size."""

    card: str
    limit_bytes: int
    margin_bytes: int
    measured: dict[int, Moment]
    residual: float
    largest: int | Unknown
    fits: list[Fit]
