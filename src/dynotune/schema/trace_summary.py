"""Facts and causes of a recorded trace. docs/reference/trace.md defines each of them."""

from __future__ import annotations

from typing import Literal

import msgspec

from dynotune.schema.facts import Unknown

IdleCause = Literal["host", "loader", "sync", "kernel", "other"]
StepSource = Literal["profiler", "repetition"]
Caller = Literal["program", "library", "compiled", "optimizer", "backward", "loader", "unknown"]

RankPhase = Literal["input", "upload", "forward", "backward", "optimizer", "other"]
RANK_PHASES: tuple[RankPhase, ...] = ("input", "upload", "forward", "backward", "optimizer", "other")
"""Phases of a rank's own work in a step, without communication and waits. `other`: work between update and
batch."""

SHORT_KERNEL_S = 10e-6
"""Queueing a kernel shorter than this takes the host longer than running the kernel takes the device."""
SMALL_COPY_BYTES = 64 * 1024
MANY_SMALL_COPIES = 100
"""Size in bytes below which a copy takes only latency, and the number of these small copies per step that is
many."""

PRODUCTS: tuple[str, ...] = (
    "matmul",
    "convolution",
    "recurrent",
    "attention-flash",
    "attention-memory-efficient",
    "attention-cudnn",
    "attention-math",
    "attention-other",
)
"""Classes of kernels that multiply matrices."""


class Place(msgspec.Struct, frozen=True):
    """A place in the program; "" for a field that the trace does not show.

    Args:
        function: Python function with file and line, `train.py(31): step`: the innermost function of the
            user's code, else the innermost function of any code.
        operator: outermost operator or annotation below that function, `aten::item`.
        call: CUDA call, `cudaStreamSynchronize`.
    """

    function: str = ""
    operator: str = ""
    call: str = ""


class Idle(msgspec.Struct, frozen=True):
    """The device's idle time in seconds, by cause; the causes sum to the total."""

    host_s: float = 0.0
    loader_s: float = 0.0
    sync_s: float = 0.0
    kernel_s: float = 0.0
    other_s: float = 0.0


class Overlap(msgspec.Struct, frozen=True):
    """Seconds in which exactly the kinds of work in a field's name ran on the device at once."""

    compute_s: float = 0.0
    copy_s: float = 0.0
    communication_s: float = 0.0
    compute_and_copy_s: float = 0.0
    compute_and_communication_s: float = 0.0
    copy_and_communication_s: float = 0.0
    all_s: float = 0.0


class DeviceTime(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one device of one rank in the time window; `first_gap` is None if the window does not begin
    idle."""

    rank: int | None
    device: int
    name: str = ""
    window_s: float
    busy_s: float
    compute_s: float
    copy_s: float
    communication_s: float
    idle_s: float
    overlap: Overlap = Overlap()
    idle: Idle = Idle()
    late_s: float = 0.0
    first_gap: Idle | None = None
    usual_gap: Idle | None = None

    @property
    def shares(self) -> Shares:
        """Return shares of the time window; time in which only copies and communication ran is
        communication."""
        window_s, overlap = self.window_s or 1.0, self.overlap
        exposed_s = overlap.communication_s + overlap.copy_and_communication_s
        beside_s = overlap.compute_and_copy_s + overlap.compute_and_communication_s + overlap.all_s
        idle = msgspec.structs.asdict(self.idle)
        return Shares(
            compute=(overlap.compute_s + beside_s) / window_s,
            exposed_copy=overlap.copy_s / window_s,
            exposed_communication=exposed_s / window_s,
            **{f"idle_{name.removesuffix('_s')}": part_s / window_s for name, part_s in idle.items()},
        )


class HostTime(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of a process's step thread in the time window, by kind of host work."""

    rank: int | None
    window_s: float
    loader_s: float
    operator_s: float
    communication_s: float
    loader_in_background: bool = False


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """An interval in which a device was idle; `start_s`: seconds after the time window's start.

    `cause`: the cause of most of the gap; `where`: the place of the host for most of the gap.
    """

    rank: int | None
    device: int
    start_s: float
    duration_s: float
    cause: IdleCause
    where: Place = Place()


class Copies(msgspec.Struct, frozen=True, kw_only=True):
    """Copies of one kind: "HtoD", "DtoH", "DtoD", "PtoP", "HtoH" or "unknown".

    `pinned`: None if no host memory takes part or it is not recorded; `bytes_per_s`: None if no size is
        known.
    """

    rank: int | None
    kind: str
    pinned: bool | None
    num: int
    num_bytes: int | None
    total_s: float
    bytes_per_s: float | None
    exposed_s: float
    median_bytes: int | None = None


class Calls(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one function of the CUDA runtime or driver from one place, inside the window."""

    rank: int | None
    call: str
    num: int
    total_s: float
    where: Place = Place()


class KernelClass(msgspec.Struct, frozen=True, kw_only=True):
    """Kernels of one class; `largest` is the name of the kernel that took most of the class's time."""

    name: str
    num: int
    total_s: float
    share: float
    largest: str = ""


class Kernels(msgspec.Struct, frozen=True, kw_only=True):
    """The kernels of one rank inside the window. None: not known, as for the last fields in older records."""

    rank: int | None
    num: int
    total_s: float
    mean_s: float | None
    median_s: float | None
    per_s: float
    per_step: float | None
    num_launches: int | None
    in_graphs: int | None
    mean_queue_depth: float | None
    max_queue_depth: int | None
    tensor_core_share: float | None
    classes: list[KernelClass]
    num_short: int | None = None
    short_s: float | None = None
    fusable_s: float | None = None


class Communication(msgspec.Struct, frozen=True, kw_only=True):
    """Collectives of one rank. `exposed_s`: seconds in which no other work ran on the device."""

    rank: int | None
    num: int
    total_s: float
    exposed_s: float
    hidden_s: float


class RankTime(msgspec.Struct, frozen=True, kw_only=True):
    """One rank compared with the others. `waits_s`: time inside collectives before the last rank had joined.

    `phase_s`: the rank's own seconds in each phase of a median step; {} if not known.
    """

    rank: int | None
    step_s: float | None
    busy_s: float | None
    waits_s: float | None
    clock_offset_s: float | None = None
    phase_s: dict[RankPhase, float] = {}


class Straggler(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that others wait for. `late_s`: its delay in a median step; None if steps cannot be compared.

    `phases`: phases in which the rank is late, the longest first; [] if not known.
    """

    rank: int
    phases: list[RankPhase] = []
    late_s: float | None = None


class Ranks(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison of ranks. `stragglers`: the ranks that the others wait for, the slowest first; old records
    lack it."""

    ranks: list[RankTime]
    imbalance: float | None
    aligned_by: Literal["clock", "collectives", "nothing"]
    stragglers: list[Straggler]


class Called(msgspec.Struct, frozen=True, kw_only=True):
    """Operators with the same name and the same caller."""

    num: int
    self_s: float


class Operator(msgspec.Struct, frozen=True, kw_only=True):
    """Operators with the same name on the host. `self_s` excludes the operators inside.

    `callers`: number and time by caller, as docs/reference/trace.md defines callers; {} in older records.
    """

    name: str
    num: int
    self_s: float
    callers: dict[Caller, Called] = {}


class WrittenAttention(msgspec.Struct, frozen=True, kw_only=True):
    """Softmax operators of the forward pass, outside torch's own attention, in the window.

    Args:
        num_whole: number of those with a batched product before, whose scores are only scaled and masked, and
            another after, with at most a dropout between.
        num_dropped: number of the latter whose weights a dropout changes.
    """

    num_softmax: int
    num_whole: int
    num_dropped: int


class Loop(msgspec.Struct, frozen=True, kw_only=True):
    """A loop of the program: what one call of a function does again and again.

    Args:
        function: the user's function that holds the loop, with its file and first line, `net.py(31):
            forward`.
        callee: what takes most of a turn: a function, or an operator that the loop calls itself.
        turns: number of turns in one call of the function; `calls`: number of such calls in a step.
        launches: mean number of launches in a turn, those of its backward pass included; without a device, of
            operators that no other operator calls.
        share, num_share: share of the window's device work, or operators, that the loop makes, by time and by
            number.
    """

    function: str
    callee: str
    turns: int
    calls: float
    launches: float
    share: float
    num_share: float


class Ungraded(msgspec.Struct, frozen=True, kw_only=True):
    """Values that a user's function computes inside a module, and that no gradient flows through.

    `function`: with its file and first line. `share`: of the device's work; without a device, of the window.
    """

    function: str
    share: float


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """The caching allocator of one device in the time window."""

    rank: int | None
    device: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    num_allocations: int


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """A cause of lost time.

    Args:
        id: id of the cause and its finding; docs/reference/trace.md defines each cause.
        lost_s: upper bound, by the cause's definition, of the seconds of the window that removing the cause
            would save.
        share: `lost_s` as a share of the window.
        claim: one sentence that states the loss.
        evidence: the figures behind the claim.
        work_s: seconds of `lost_s` in which the device worked, for causes that also include idle time.
    """

    id: str
    lost_s: float
    share: float
    claim: str
    where: Place = Place()
    evidence: list[str] = []
    work_s: float = 0.0


class Shares(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of the time window of the slowest device; all shares sum to 1."""

    compute: float
    exposed_copy: float
    exposed_communication: float
    idle_host: float
    idle_loader: float
    idle_sync: float
    idle_kernel: float
    idle_other: float


class TraceSummary(msgspec.Struct, frozen=True, kw_only=True, tag="trace"):
    """Document of `dynotune trace --json`.

    Args:
        window_s: longest window of any rank; None if no event of the trace has a duration.
        num_steps: number of steps; None if steps are neither marked nor found, as `step_source` states.
        shares: shares of the time window; None without a device.
        loops: the program's loops in the slowest rank's trace; [] without stacks, and in older records.
        attention: attention that the program writes out itself; None in older records.
        recomputed: share of forward passes inside the backward pass, of the device's work; without a device,
            of the window. None without stacks, and in older records.
        unsynced: copies to the host's page-locked memory that the program read at once, without waiting for
            them.
        unknown: facts that this trace lacks, each with the reason.
        notes: sentences on incomplete data in the trace.
    """

    schema: str = "dynotune.trace/2"
    files: list[str]
    recorder: str
    verdict: str
    window_s: float | None
    num_steps: int | None
    step_source: StepSource | None
    step_s: list[float] = []
    shares: Shares | None
    causes: list[Cause]
    devices: list[DeviceTime]
    gaps: list[Gap]
    copies: list[Copies]
    syncs: list[Calls]
    allocations: list[Calls]
    kernels: list[Kernels]
    communication: list[Communication]
    ranks: Ranks | None
    operators: list[Operator]
    memory: list[Memory] = []
    hosts: list[HostTime] = []
    unsynced: list[Calls] = []
    loops: list[Loop] = []
    attention: WrittenAttention | None = None
    recomputed: float | None = None
    ungraded: list[Ungraded] = []
    unknown: dict[str, Unknown] = {}
    notes: list[str] = []


class CauseChange(msgspec.Struct, frozen=True, kw_only=True):
    """One cause in both traces. Times are per step if both traces have known steps, else those of the
    window."""

    id: str
    before_s: float
    after_s: float
    where: Place = Place()


class TraceDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Document of `dynotune trace A B --json`: what changed. Single recordings give no interval, so no
    proof."""

    schema: str = "dynotune.trace_difference/2"
    before: TraceSummary
    after: TraceSummary
    per: Literal["step", "window"]
    before_s: float | None
    after_s: float | None
    changes: list[CauseChange]
    verdict: str
