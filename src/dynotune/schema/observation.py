"""Observation of one command on one machine: all facts that rules look at, without any conclusion."""

from typing import Literal

import msgspec

from dynotune.schema.attribution import Attribution
from dynotune.schema.facts import Facts, Unknown
from dynotune.schema.memory import RankMemory
from dynotune.schema.run import EnvironmentChange
from dynotune.schema.trace_summary import Place, TraceSummary

Why = Literal["garbage", "allocation", "compilation", "epoch", "loader", "work"]
SamplePartKind = Literal["read", "decode", "transform", "collate", "move", "pin", "wait", "own"]
PeriodicKind = Literal["validation", "checkpoint", "epoch", "other"]

FRESH_CACHES = "compile.fresh_caches"
"""Name of the fact with the environment variables, separated by spaces, by which the program gave each of its two runs
its own compile cache."""


class Tensor(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor that was seen.

    `pinned`: None if it is not in host memory. `channels_last`: None unless it has four dimensions.
    """

    shape: list[int]
    dtype: str
    device: str
    num_bytes: int
    pinned: bool | None = None
    channels_last: bool | None = None


class SamplePart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the time that making samples takes, at one line of the user's own code.

    Args:
        part: "read": opening and reading; "move": handing over to the process that draws; "wait": for a lock, or
            asleep; "own": the program's own code.
        what: a library, a format, or a transform's class.
        num: number of samples of the sampler; `wall_s`: the seconds that these represent.
        function, text: the line, "" if no line of the user's own code is on the stack.
    """

    part: SamplePartKind
    what: str = ""
    num: int
    wall_s: float
    function: str = ""
    text: str = ""


class Loading(msgspec.Struct, frozen=True, kw_only=True, tag="loading"):
    """Cost of making a loader's batches within the window, in workers or in the process.

    Args:
        fetch_s: mean wall time to make a batch, of which `collate_s` is in the collate function, `decode_s` in known
            decoders of images and sound, and the rest in the data set's items.
        cpu_s: mean processor time to make a batch.
        busy_share: share of the workers' time in which they made batches; None without workers.
        pin_s: mean time to copy a batch to page-locked memory; None if nothing was pinned.
        num_objects: Python objects in lists and dicts of the data set, estimated.
        num_threads: torch's threads in each worker; None without workers.
        num_distinct: distinct values among the first 4,096 of one plane of the batch's largest floating-point tensor.
        private_growth_bytes: growth of the workers' unshared memory over `private_over_s` seconds, after their first
            second; None if it was not measured.
        parts: how the time of a sample is divided, the largest part first; [] if no sampler ran.
        read_bytes, storage_bytes: bytes read for a batch, and those of them that came from storage rather than the page
            cache; None if the kernel does not count them.
        decoded: some of the files that were decoded.
    """

    num_batches: int
    fetch_s: float
    collate_s: float = 0.0
    decode_s: float = 0.0
    longest_s: float
    cpu_s: float
    busy_share: float | None = None
    pin_s: float | None = None
    decoders: list[str] = []
    items: Place = Place()
    collate: Place = Place()
    num_distinct: int | None = None
    num_objects: int | None = None
    num_threads: int | None = None
    private_growth_bytes: int | None = None
    private_over_s: float | None = None
    parts: list[SamplePart] = []
    read_bytes: float | None = None
    storage_bytes: float | None = None
    decoded: list[str] = []


class Padding(msgspec.Struct, frozen=True, kw_only=True):
    """Padding of some of a loader's batches.

    Args:
        by: how padding was recognised: the name of a mask, or in words.
        share: share of a batch's places that are padding; `longest_share`: the same if each batch were as long as its
            longest row; `sorted_share`: if, in addition, rows of like length were together.
    """

    by: str
    num_batches: int
    share: float
    longest_share: float
    sorted_share: float


class Loader(msgspec.Struct, frozen=True, kw_only=True):
    """A torch DataLoader that the program drew from.

    Args:
        num_items, num_batches: None if the loader has no known length.
        context: start method of its workers; None without workers.
        num_begun: number of iterations begun so far; `num_drawn`: number of batches drawn so far.
        batch: tensors of one batch as the loader returned them; None if no batch was looked at.
        batch_is_pinnable: False if the batch's class has no `pin_memory` and is no container that torch knows.
        splits_by_worker: whether its IterableDataset or `worker_init_fn` asks for the worker's number; None for others.
        padding: None if the lengths of its batches' rows are not known.
        place: where the program first iterated the loader.
    """

    name: str
    dataset: str
    sampler: str = ""
    collate: str = ""
    num_items: int | None = None
    num_batches: int | None = None
    batch_size: int | None = None
    num_workers: int = 0
    pin_memory: bool = False
    pin_memory_device: str = ""
    persistent_workers: bool = False
    prefetch_factor: int | None = None
    in_order: bool | None = None
    drop_last: bool | None = None
    context: str | None = None
    is_iterable: bool = False
    num_begun: int = 0
    num_drawn: int | None = None
    batch: list[Tensor] | None = None
    batch_is_pinnable: bool | None = None
    splits_by_worker: bool | None = None
    padding: Padding | None = None
    place: Place = Place()
    loading: Loading | Unknown = Unknown("making its batches was not timed")


class ModelCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call of an outermost module, observed after warm-up.

    Args:
        autocast: type of the device's autocast region; None outside of such a region.
        input_requires_grad: whether any of its inputs does; None in older records.
        output_requires_grad: None if the output has no tensor.
        num_input_shapes: distinct shapes of its inputs since the module was found; None if they were not counted.
        num: number of observed calls; `num_grown` of these had inputs that were all longer in one dimension than in the
            call before, by at most half, and by `growth` in total; `num_synced` of these exchange gradients between
            ranks.
        seen_share: share of the samples of the thread that makes the steps that were inside a call from this place;
            None if no sampler ran.
    """

    grad_enabled: bool
    inference_mode: bool
    autocast: str | None = None
    training: bool
    inputs: list[Tensor] = []
    input_requires_grad: bool | None = None
    output_requires_grad: bool | None = None
    num_input_shapes: int | None = None
    num: int = 0
    num_grown: int = 0
    growth: int = 0
    num_synced: int = 0
    seen_share: float | None = None
    place: Place = Place()


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """The weights of an embedding that is trained. `sparse`: its gradients have only the rows that were used."""

    num_rows: int
    num_bytes: int
    sparse: bool


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """An outermost module that the steps call.

    Args:
        channels_last_share: share of the elements of four-dimensional weights; None without such weights.
        num_training: number of its modules in training mode that behave differently in evaluation (dropout, batch
            norm).
        num_updated: number of its tensors that an optimizer updates.
        table: its largest trained embedding; None without one.
        wrapper: "DataParallel", "DistributedDataParallel", "FullyShardedDataParallel" or "".
        ddp: arguments of DistributedDataParallel, and `unused_parameters` if it reported them.
    """

    name: str
    num_parameters: int
    parameter_bytes: int
    num_tensors: int = 0
    dtypes: dict[str, int] = {}
    devices: dict[str, int] = {}
    channels_last_share: float | None = None
    num_modules: dict[str, int] = {}
    training: bool = False
    num_training: int = 0
    num_updated: int | None = None
    table: Table | None = None
    wrapper: str = ""
    ddp: Facts = {}
    compiled: bool = False
    call: ModelCall | None = None


class Optimizer(msgspec.Struct, frozen=True, kw_only=True):
    """An optimizer that stepped.

    Args:
        foreach, fused: values of its first group; None: torch chooses.
        groups_differ: whether groups differ in foreach or fused, so that some group has its own value.
    """

    name: str
    foreach: bool | None = None
    fused: bool | None = None
    groups_differ: bool = False
    num_tensors: int = 0
    devices: list[str] = []
    scaled: bool = False
    place: Place = Place()


class Allocator(msgspec.Struct, frozen=True, kw_only=True):
    """The caching allocator of one device: levels at the window's end, and growth of counters within the window.

    Args:
        allocated_growth_bytes: level at the window's end less the level at its begin.
        allocated_levels_bytes: levels at the ends of steps spread evenly over the window, including its two ends; [] if
            only these two are known.
    """

    device: int
    total_bytes: int
    allocated_bytes: int
    allocated_growth_bytes: int
    reserved_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    num_alloc_retries: int
    num_ooms: int
    num_device_allocations: int
    num_device_frees: int
    allocated_levels_bytes: list[int] = []


class Compilation(msgspec.Struct, frozen=True, kw_only=True, tag="compilation"):
    """Compilations by torch.compile in the process.

    Args:
        num_graphs, num_graph_breaks, num_recompilations: since the start; `…_in_window`: within the window.
        breaks, recompilations: reasons, the most frequent first: "3x torch/…: reason".
        limit_reached: functions that hit the limit of recompilations and run eagerly since.
        cudagraph_skips: reasons why CUDA graphs were not used.
        skipped: reasons why functions were not compiled at all, for instance a break inside a loop.
        num_cudagraphs_in_window: CUDA graphs that torch.compile recorded within the window; None if not known.
    """

    num_graphs: int
    num_graph_breaks: int
    num_recompilations: int
    num_compilations_in_window: int
    breaks: list[str] = []
    recompilations: list[str] = []
    limit_reached: list[str] = []
    cudagraph_skips: list[str] = []
    modes: list[str] = []
    skipped: list[str] = []
    num_cudagraphs_in_window: int | None = None


class Collections(msgspec.Struct, frozen=True, kw_only=True, tag="collections"):
    """Python's garbage collections within the window; the oldest generation is the expensive one."""

    num: int
    num_oldest: int
    total_s: float
    longest_s: float
    num_objects: int | None = None


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the user's own code at which a thread was seen.

    Args:
        function: with file and line, `train.py(31): step`; a package's function if nothing on the stack is the user's.
        text: the line as it is written, without secrets; "" if the file does not exist.
        callee: the function of a library that the line calls; "" if the line itself runs, or calls C code.
        leaf: the function that ran, if it is not `function`.
        inside: "loader": a DataLoader called this line; "event-loop": the loop waits, and a task awaits at this line.
        num: number of times that the sampler saw the line.
        cpu_s: total processor time of the thread before each of these samples since the last one; None if unmeasured.
        least_cpu_s: the same, but each time the lesser of the times before and after the sample; None in older records.
    """

    function: str
    text: str = ""
    callee: str = ""
    leaf: str = ""
    inside: str = ""
    num: int
    cpu_s: float | None = None
    least_cpu_s: float | None = None


class Thread(msgspec.Struct, frozen=True, kw_only=True):
    """A thread that the sampler saw within the window.

    `cpu_s`: processor time that it took meanwhile; None if the kernel does not count it. `parts`: how the time of the
    samples that it makes is divided; for the thread of the steps, its work for a loader.
    """

    name: str = ""
    of_steps: bool = False
    num: int
    cpu_s: float | None
    lines: list[Line] = []
    parts: list[SamplePart] = []


class PeriodicWork(msgspec.Struct, frozen=True, kw_only=True):
    """Work that only some steps do, and that makes them longer.

    Args:
        kind: as far as names of functions and files show it.
        function: line at which the program begins the work, `train.py(70): main`; `text`: the line as it is written.
        callee: the function in which most of the work is; "" if the line itself takes the time.
        num_steps: number of the window's steps that did the work; `every`: median number of steps from one to the next.
        share: share of the window.
    """

    kind: PeriodicKind
    function: str
    text: str = ""
    callee: str = ""
    num_steps: int
    every: int | None = None
    share: float


class SlowStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step among the slowest hundredth. `causes`: what happened in it; "work" refers to `ProcessState.periodic`."""

    index: int
    step_s: float
    wait_s: float
    causes: list[Why] = []


class Timing(msgspec.Struct, frozen=True, kw_only=True, tag="timing"):
    """Timing of the plain window: nothing was recorded, and the device was synchronised only at the window's two ends.

    Args:
        step_s: length of the window divided by its steps, in seconds.
        wait_s: mean time per step inside `next()` of loaders, and inside `iter()` when an epoch begins; None if the
            program drew from no torch loader.
        epoch_begin_s: median of steps that begin an epoch; None without such steps.
        typical_step_s: median of steps without any of the events in `slow`.
        steady: whether the steps had become steady before the window began.
    """

    num_steps: int
    window_s: float
    step_s: float
    median_step_s: float
    p99_step_s: float
    longest_step_s: float
    wait_s: float | None = None
    samples_per_s: float | None = None
    num_epochs: int = 0
    epoch_begin_s: float | None = None
    time_to_first_step_s: float | None = None
    num_compilations: int = 0
    num_device_allocations: int | None = None
    typical_step_s: float | None = None
    slow: list[SlowStep] = []
    steady: bool = True


class ProcessState(msgspec.Struct, frozen=True, kw_only=True):
    """State of one process that makes steps, as the agent saw it at the end of the window.

    Args:
        rss_growth_bytes: growth of the process's resident memory in the window, without files and shared memory.
        threads: threads that ran the user's code in the window, the thread of the steps first; [] if no sampler ran.
        rss_levels_bytes: resident memory at the ends of steps spread evenly over the window; [] if not recorded.
        graph_nodes_growth: number of autograd graph nodes that tensors hold at the window's end less that at its begin;
            None if there were too many to count, and in older records.
        graph_nodes: number of all such nodes at the window's end.
    """

    pid: int
    rank: int | None = None
    world_size: int = 1
    step: str = ""
    timing: Timing | Unknown = Unknown("nothing was timed")
    live: Facts = {}
    loaders: list[Loader] = []
    models: list[Model] = []
    optimizers: list[Optimizer] = []
    allocators: list[Allocator] = []
    compilation: Compilation | Unknown = Unknown("torch.compile was not used")
    collections: Collections | Unknown = Unknown("not asked")
    threads: list[Thread] = []
    periodic: list[PeriodicWork] = []
    peak_rss_bytes: int | None = None
    rss_growth_bytes: int | None = None
    rss_levels_bytes: list[int] = []
    graph_nodes_growth: int | None = None
    graph_nodes: int | None = None
    environment_changes: list[EnvironmentChange] = []


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a command, for the rules. `dynotune doctor` fills in only the facts.

    Args:
        facts: of machine, container, interpreter and environment; `window.*` are from samples during the plain window.
        attribution: Unknown without a plain window's timing or without a trace.
        memory: of each rank on each of its devices.
    """

    schema: str = "dynotune.observation/2"
    command: list[str] = []
    facts: Facts = {}
    processes: list[ProcessState] | Unknown = Unknown("no command was run")
    trace: TraceSummary | Unknown = Unknown("no command was run")
    attribution: Attribution | Unknown = Unknown("no command was run")
    memory: list[RankMemory] | Unknown = Unknown("it was not recorded")
    notes: list[str] = []
