"""Observation of one command on one machine: all facts that rules use, without any conclusion."""

import msgspec

from dynotune.schema.account import RunAccount
from dynotune.schema.allocator import Allocator
from dynotune.schema.attribution import Attribution
from dynotune.schema.compilation import NOT_COMPILED, Compilation
from dynotune.schema.cycle import CyclePart
from dynotune.schema.delays import DelayTests
from dynotune.schema.facts import NOT_ASKED, Facts, Unknown
from dynotune.schema.host import Collections, StackLine, Thread
from dynotune.schema.loader import Loader
from dynotune.schema.memory import RankMemory
from dynotune.schema.model import Model, Optimizer
from dynotune.schema.program_options import ProgramOption
from dynotune.schema.run import EnvironmentChange
from dynotune.schema.serving import Serving
from dynotune.schema.timing import PeriodicWork, Timing
from dynotune.schema.trace_summary import TraceSummary

FRESH_CACHES = "compile.fresh_caches"
"""Name of a fact: the environment variables, separated by spaces, with which the program gave each of its two
runs a compile cache of its own."""

WHOLE_RUN = "command.whole_s"
"""Name of a fact: the seconds of a whole run of the command, if the command ended by itself before it was
timed."""


class InspectedState(msgspec.Struct, frozen=True, kw_only=True):
    """State of one process, as the agent read it at the end of the window.

    Args:
        rss_growth_bytes: growth of the process's resident memory in the window, not counting files and shared
            memory.
        threads: threads that ran the user's code in the window, the thread of the steps first; [] if no
            sampler ran.
        rss_levels_bytes: resident memory at the ends of steps spread evenly over the window; [] if not
            recorded.
        graph_nodes_growth: growth, over the window, of the number of autograd graph nodes that tensors keep
            alive; None if too many to count, and in older records.
        graph_nodes: number of autograd graph nodes that tensors keep alive at the window's end.
    """

    live: Facts = {}
    loaders: list[Loader] = []
    models: list[Model] = []
    optimizers: list[Optimizer] = []
    allocators: list[Allocator] = []
    threads: list[Thread] = []
    peak_rss_bytes: int | None = None
    rss_growth_bytes: int | None = None
    rss_levels_bytes: list[int] = []
    graph_nodes_growth: int | None = None
    graph_nodes: int | None = None


class MadeTrainer(msgspec.Struct, frozen=True):
    """A trainer of a library that runs the program's loop.

    `name`: such as `lightning.Trainer`. `place`: the user's line that makes it, `file:line`; "" if unknown.
    """

    name: str
    place: str = ""


class ProcessState(InspectedState, frozen=True, kw_only=True):
    """State and timing of one process that makes steps.

    Args:
        rank: None for a program of one process.
        step: description of a step; `cycle`: the first parts of the cycle that is a step, [] in older
            records.
        stack: lines on the stack of the thread of the steps, those with most samples first; [] in older
            records.
        failed: reason by name of the part that could not be inspected.
        options: options that the program parses; [] if none of the known parsers did.
        trainers: trainers of libraries that the program made; [] in older records.
        serving: calls of models and marked frames, mostly before the window; None if too few, and in older
            records.
    """

    pid: int
    rank: int | None = None
    world_size: int = 1
    step: str = ""
    cycle: list[CyclePart] = []
    timing: Timing | Unknown = Unknown("nothing was timed")
    compilation: Compilation | Unknown = NOT_COMPILED
    collections: Collections | Unknown = Unknown("not asked")
    periodic: list[PeriodicWork] = []
    stack: list[StackLine] = []
    environment_changes: list[EnvironmentChange] = []
    failed: dict[str, str] = {}
    options: list[ProgramOption] = []
    trainers: list[MadeTrainer] = []
    serving: Serving | None = None


class GrownType(msgspec.Struct, frozen=True):
    """A type of Python of which there were `growth` objects more after some steps, `num` in all."""

    name: str
    num: int
    growth: int


class GrownObjects(msgspec.Struct, frozen=True, kw_only=True, tag="grown_objects"):
    """Python's objects that `num_steps` steps left behind. `grown`: their types, largest growth first."""

    num_steps: int = 0
    grown: list[GrownType] = []


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """All observed facts about a command, as input of the rules. `dynotune doctor` fills in only `facts`.

    Args:
        facts: facts about machine, container, interpreter and environment; `window.*`: samples in the plain
            window.
        attribution: attribution of step time; Unknown without the plain window's timing or without a trace.
        memory: memory of each rank on each of its devices.
        delays: how a step answered delays of its parts.
        account: where the time went up to the plain window.
        objects: Python's objects that steps left behind; counted only in a program whose memory grows.
    """

    schema: str = "dynotune.observation/2"
    command: list[str] = []
    facts: Facts = {}
    processes: list[ProcessState] | Unknown = Unknown("no command was run")
    trace: TraceSummary | Unknown = Unknown("no command was run")
    attribution: Attribution | Unknown = Unknown("no command was run")
    memory: list[RankMemory] | Unknown = Unknown("it was not recorded")
    delays: DelayTests | Unknown = NOT_ASKED
    objects: GrownObjects | Unknown = NOT_ASKED
    account: RunAccount | Unknown = NOT_ASKED
    notes: list[str] = []
