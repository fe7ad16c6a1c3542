"""Document on a command's time to its first step, by phase, with caches cold, warm and off."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Literal, get_args

import msgspec

from dynotune.schema.caches import Cache, CacheName, Growth
from dynotune.schema.comparison import Verdict
from dynotune.schema.diagnosis import Finding, NotKnown
from dynotune.schema.facts import Facts, Unknown
from dynotune.schema.run import RunSpec

CacheState = Literal["cold", "warm", "off"]
CACHE_STATES: tuple[CacheState, ...] = get_args(CacheState)
Phase = Literal[
    "launcher",
    "interpreter",
    "agent",
    "imports_before_torch",
    "torch_import",
    "imports",
    "compiler_import",
    "cuda_start",
    "model_build",
    "weights",
    "to_device",
    "compile",
    "first_batch",
    "first_step",
    "other",
]
PHASES: dict[Phase, str] = {
    "launcher": "launching",
    "interpreter": "interpreter and site",
    "agent": "dynotune's agent",
    "imports_before_torch": "imports before torch",
    "torch_import": "torch import",
    "imports": "other imports",
    "compiler_import": "torch.compile's import",
    "cuda_start": "CUDA start",
    "model_build": "model build",
    "weights": "reading of weights",
    "to_device": "model to its device",
    "compile": "compile",
    "first_batch": "first batch",
    "first_step": "first step",
    "other": "the rest",
}
"""Phases of a start in order of time, each with its label."""


SpanPhase = Phase | Literal["library_load", "graph_capture", "process_end"]
"""Phases of spans. The last three belong to an account of a whole run alone."""


class Span(msgspec.Struct, frozen=True):
    """A time interval of the start, on CLOCK_MONOTONIC; spans may be nested."""

    phase: SpanPhase
    begin_s: float
    end_s: float
    name: str = ""


class Compiled(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of torch.compile up to the end of the start.

    Args:
        num_found, num_missed: number of graphs that came from the cache, and of graphs that were compiled.
        num_threads: number of compile processes; None if not known.
    """

    num_found: int
    num_missed: int
    num_threads: int | None = None


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """One start of the command.

    Args:
        run: id of the run.
        value_s: seconds from the launch to the end of the first step, or to the output line that ends a
            start.
        phases: seconds of each phase; the phases sum to `value_s`, and `other` includes Unknown phases. All
            phases are Unknown if no Python process of the command recorded phases.
        added: growth of each cache in the start; `held`: size of each cache after the start, in bytes.
        imports: the longest imports in seconds, each including the modules imported inside.
        compiled: None if torch.compile compiled nothing.
        until_steady_s: from the end of the first step until steps were steady; None if that was not observed.
        late_s: seconds of `until_steady_s` by which steps without compilation were longer than steady steps.
        at_exit: whether the command ended with the line that ends a start.
    """

    arm: CacheState
    run: str
    value_s: float
    phases: dict[Phase, float | Unknown]
    added: list[Growth] = []
    held: dict[CacheName, int] = {}
    imports: list[tuple[str, float]] = []
    compiled: Compiled | None = None
    until_steady_s: float | Unknown | None = None
    late_s: float | None = None
    at_exit: bool = False

    def added_bytes(self, *names: CacheName) -> int:
        """Return the bytes that the start added to these caches; empty folders that inductor leaves count
        0."""
        return sum(growth.size_bytes for growth in self.added if growth.name in names)


class StartBlock(msgspec.Struct, frozen=True):
    """One start of each arm, in the order in which they ran."""

    starts: list[Start]

    def of(self, arm: CacheState) -> Start:
        return next(start for start in self.starts if start.arm == arm)


class VoidBlock(msgspec.Struct, frozen=True):
    """A block that does not count, because of a cause outside the command's processes. `block`: its number,
    from 1."""

    block: int
    reason: str
    values: StartBlock


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison of one arm (caches cold or off) with the warm arm.

    Args:
        verdict: `faster`: the command starts faster with a warm cache.
        ratio: geometric mean of the arm's times over the warm ones; None until there are two blocks.
        saved_s: seconds of the arm's median start that a warm cache saves; `saved_ci`: their confidence
            interval.
    """

    arm: CacheState
    verdict: Verdict | None = None
    ratio: float | None = None
    ci: tuple[float, float] | None = None
    num_blocks: int = 0
    reason: str = ""
    median_s: float | None = None
    warm_median_s: float | None = None
    saved_s: float | None = None
    saved_ci: tuple[float, float] | None = None
    num_blocks_to_settle: int | None = None


class StartChange(msgspec.Struct, frozen=True, kw_only=True):
    """How starts of one state of the caches changed since a kept record.

    Args:
        ratio: geometric mean of the times now over those before; above 1, starts are slower now.
        ci: confidence interval of `ratio`; None if there are too few starts, for `reason`.
    """

    arm: CacheState
    verdict: Verdict = "undecided"
    ratio: float
    ci: tuple[float, float] | None = None
    num_before: int
    num_now: int
    reason: str = ""


class Startup(msgspec.Struct, frozen=True, kw_only=True):
    """Document `startup.json`.

    Args:
        run: how every start is made; with a `ready_pattern`, a start ends at that line, else at the first
            step.
        max_blocks: most blocks; 0 for one cold and one warm start, which are the pilots.
        pilots: starts that do not count beside blocks, one of each arm, in the order `cold`, `warm`, `off`.
        against: kept record that the starts are judged against, without its own and without settings; None if
            none was named.
        changes: how starts changed since then; empty without a record.
    """

    schema: str = "dynotune.startup/2"
    id: str
    run: RunSpec
    step: str = ""
    margin: float = 0.05
    max_blocks: int = 12
    confidence: float = 0.95
    block_s: float | None = None
    pilots: list[Start] = []
    blocks: list[StartBlock] = []
    voided: list[VoidBlock] = []
    ratios: list[Ratio] = []
    against: "Startup | None" = None
    changes: list[StartChange] = []
    own: list[Cache] = []
    said: list[str] = []
    to_set: dict[str, str] = {}
    findings: list[Finding] = []
    unknown: list[NotKnown] = []
    warm_caches: str = ""
    warnings: list[str] = []
    finished: bool = False
    facts: Facts = {}

    def starts(self, arm: CacheState) -> list[Start]:
        """Return the starts that count, else the starts of void blocks, or the pilots before the first
        block."""
        blocks = self.blocks or [voided.values for voided in self.voided]
        return [block.of(arm) for block in blocks] or [pilot for pilot in self.pilots if pilot.arm == arm]

    def ratio(self, arm: CacheState) -> Ratio | None:
        return next((ratio for ratio in self.ratios if ratio.arm == arm), None)


def phase_s(starts: Sequence[Start], phase: Phase) -> float | Unknown:
    """Return the median seconds of a phase over these starts; Unknown if any of the starts lacks the
    phase."""
    values = [start.phases.get(phase, Unknown("not recorded")) for start in starts]
    unknown = next((value for value in values if isinstance(value, Unknown)), None)
    if unknown is not None:
        return unknown
    return median(value for value in values if not isinstance(value, Unknown))


def median(values: Iterable[float]) -> float | Unknown:
    known = list(values)
    return statistics.median(known) if known else Unknown("nothing was timed")
