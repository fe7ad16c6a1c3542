"""Observation of one command on one machine: all facts that rules use, without any conclusion."""

from typing import Literal

import msgspec

from dynotune.schema.attribution import Attribution
from dynotune.schema.delays import DelayTests
from dynotune.schema.facts import NOT_ASKED, Facts, Unknown
from dynotune.schema.memory import RankMemory
from dynotune.schema.run import EnvironmentChange
from dynotune.schema.trace_summary import Place, TraceSummary

Why = Literal["garbage", "allocation", "compilation", "epoch", "loader", "work"]
SamplePartKind = Literal["read", "decode", "transform", "collate", "move", "pin", "wait", "own"]
PeriodicKind = Literal["validation", "checkpoint", "epoch", "other"]

FRESH_CACHES = "compile.fresh_caches"
"""Name of a fact: the environment variables, separated by spaces, with which the program gave each of its two runs a
compile cache of its own."""


class Tensor(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor that the agent observed.

    `pinned`: None for a tensor outside host memory. `channels_last`: None unless the tensor has four dimensions.
    """

    shape: list[int]
    dtype: str
    device: str
    num_bytes: int
    pinned: bool | None = None
    channels_last: bool | None = None


class SamplePart(msgspec.Struct, frozen=True, kw_only=True):
    """A share of the time to make samples, spent at one source line of the user's own code.

    Args:
        part: "read": opening and reading files; "move": handing over to the process that draws; "wait": waiting for a
            lock, or asleep; "own": the program's own code.
        what: name of the library, file format, or transform class that takes the time.
        num: number of the sampler's observations; `wall_s`: the wall-clock seconds that these observations represent.
        function, text: the source line and its text; "" if no line of the user's own code is on the stack.
    """

    part: SamplePartKind
    what: str = ""
    num: int
    wall_s: float
    function: str = ""
    text: str = ""


class Loading(msgspec.Struct, frozen=True, kw_only=True, tag="loading"):
    """Cost of making a loader's batches in the timed window, in workers or in the process itself.

    Args:
        fetch_s: mean wall time to make a batch; includes `collate_s` in the collate function and `decode_s` in known
            decoders of images and sound; the remainder is in the data set's items.
        cpu_s: mean processor time to make a batch.
        busy_share: share of the workers' time in which they made batches; None without workers.
        pin_s: mean time to copy a batch to page-locked memory; None if nothing was pinned.
        num_objects: Python objects in lists and dicts of the data set, estimated.
        num_threads: torch's threads in each worker; None without workers.
        num_distinct: number of distinct values among the first 4,096 in a plane of the batch's largest float tensor.
        private_growth_bytes: growth of the workers' unshared memory over `private_over_s` seconds, without their first
            second; None if not measured.
        parts: the time to make a sample by kind of work, the largest share first; [] if no sampler ran.
        read_bytes, storage_bytes: bytes read per batch, and bytes of these from storage rather than the page cache;
        None if the kernel does not count bytes. decoded: paths of some files that were decoded.
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
    """Padding in some batches of a loader.

    Args:
        by: how padding was recognised: the name of a mask, or a description.
        share: share of a batch's elements that are padding; `longest_share`: this share if each batch were as long as
            its longest row; `sorted_share`: if, in addition, rows of similar length were batched together.
    """

    by: str
    num_batches: int
    share: float
    longest_share: float
    sorted_share: float


class Loader(msgspec.Struct, frozen=True, kw_only=True):
    """A torch DataLoader from which the program drew batches.

    Args:
        num_items, num_batches: None if the loader has no known length.
        context: start method of the loader's workers; None without workers.
        num_begun: number of iterations (epochs) begun so far; `num_drawn`: number of batches drawn so far.
        batch: tensors of one batch as the loader returned them; None if no batch was looked at.
        batch_is_pinnable: False if the class of a batch has no `pin_memory` and is no container that torch can pin.
        splits_by_worker: whether the IterableDataset or `worker_init_fn` asks for the worker's number; None for others.
        padding: padding in batches; None if the lengths of rows are not known.
        place: code place where the program first iterated the loader.
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
    """One call of an outermost module (a model), observed after warm-up.

    Args:
        autocast: type of the autocast region around the call; None outside of autocast regions.
        input_requires_grad: whether any input requires gradients; None in older records.
        output_requires_grad: whether any output requires gradients; None if the output has no tensor.
        num_input_shapes: number of distinct input shapes since the module was found; None if not counted.
        num: number of observed calls. `num_grown`: calls with inputs that were all longer in one dimension than in the
            call before, by at most half; `growth`: total growth. `num_synced`: calls that exchange gradients between
            ranks.
        seen_share: share of the sampler's observations of the step thread that were inside a call from this place; None
            if no sampler ran.
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
    """Weights of a trained embedding. `sparse`: whether the gradients contain only the rows that were used."""

    num_rows: int
    num_bytes: int
    sparse: bool


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """An outermost module that the steps call.

    Args:
        channels_last_share: channels_last share of four-dimensional weights, by elements; None without such weights.
        num_training: number of modules in training mode that behave differently in evaluation (dropout, batch norm).
        num_updated: number of the model's tensors that an optimizer updates.
        table: the model's largest trained embedding; None without a trained embedding.
        wrapper: class around the model: "DataParallel", "DistributedDataParallel", "FullyShardedDataParallel" or "".
        ddp: arguments of DistributedDataParallel, and its `unused_parameters` if DDP reported these.
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
    """An optimizer whose `step` was called.

    Args:
        foreach, fused: values in the first parameter group; None: torch chooses.
        groups_differ: whether parameter groups have different values of foreach or fused.
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
    """The caching allocator of one device: levels at the timed window's end, and growth of counters in the window.

    Args:
        allocated_growth_bytes: allocated bytes at the window's end minus allocated bytes at the window's begin.
        allocated_levels_bytes: allocated bytes at the ends of steps spread evenly over the window, including both
            window ends; [] if only the window ends are known.
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
        num_graphs, num_graph_breaks, num_recompilations: counts since the start; `…_in_window`: counts in the window.
        breaks, recompilations: reasons of graph breaks and recompilations, most frequent first: "3x torch/…: reason".
        limit_reached: functions that reached the limit of recompilations and have run eagerly since then.
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
    """Python's garbage collections within the window; the oldest generation is the expensive one.

    Args:
        asked_s: seconds of the collections that the program asked for by `gc.collect()`; 0 in older records.
        asked_at: the place in the user's code that asked for most of that time; "" without such a place.
    """

    num: int
    num_oldest: int
    total_s: float
    longest_s: float
    num_objects: int | None = None
    asked_s: float = 0.0
    asked_at: str = ""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A source line of the user's own code at which the sampler saw a thread.

    Args:
        function: function with file and line, `train.py(31): step`; a package's if no user function is on the stack.
        text: the source line's text, without secrets; "" if the file does not exist.
        callee: the library function that the line calls; "" if the line itself runs, or calls C code.
        leaf: the innermost function that ran, if different from `function`.
        inside: "loader": a DataLoader called this line; "event-loop": the loop waits, and a task awaits at this line.
        num: number of times that the sampler saw the line.
        cpu_s: the thread's processor seconds from the sample before each of these samples, summed; None if unmeasured.
        least_cpu_s: the sum of the lesser of the processor times before and after each sample; None in older records.
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
    """A thread that the sampler saw in the timed window.

    `cpu_s`: the thread's processor seconds in the window; None if the kernel does not count them. `parts`: the thread's
    time to make samples by kind of work; for the step thread, the work for a loader.
    """

    name: str = ""
    of_steps: bool = False
    num: int
    cpu_s: float | None
    lines: list[Line] = []
    parts: list[SamplePart] = []


class StackLine(msgspec.Struct, frozen=True, kw_only=True):
    """A source line, outside torch and the standard library, on the stack of the thread that runs the steps.

    `callee`: the next line on the stack that was seen most often, as `function`; "" if the line itself ran, or called
    torch or the standard library. `num`: number of samples with the line on the stack.
    """

    function: str
    text: str = ""
    callee: str = ""
    num: int


class PeriodicWork(msgspec.Struct, frozen=True, kw_only=True):
    """Work that only some steps do, and that makes these steps longer.

    Args:
        kind: the kind of work, as far as names of functions and files show it.
        function: source line at which the program begins the work, `train.py(70): main`; `text`: the line's text.
        callee: the function in which most of the work happens; "" if the source line itself takes the time.
        num_steps: number of steps in the window that did the work; `every`: median distance of these steps, in steps.
        share: share of the window's time that the work takes.
    """

    kind: PeriodicKind
    function: str
    text: str = ""
    callee: str = ""
    num_steps: int
    every: int | None = None
    share: float


class SlowStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step among the slowest hundredth. `causes`: events in the step; "work": an entry of `ProcessState.periodic`."""

    index: int
    step_s: float
    wait_s: float
    causes: list[Why] = []


class Timing(msgspec.Struct, frozen=True, kw_only=True, tag="timing"):
    """Timing of the plain window: nothing was recorded, and the device was synchronised only at the window's two ends.

    Args:
        step_s: length of the window divided by its steps, in seconds.
        wait_s: mean seconds per step inside `next()` of loaders and inside `iter()` at an epoch's begin; None if the
            program used no torch loader.
        epoch_begin_s: median seconds of the steps that begin an epoch; None without such steps.
        typical_step_s: median seconds of the steps without any of the events in `slow`.
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


class InspectedState(msgspec.Struct, frozen=True, kw_only=True):
    """State of one process, as the agent read it at the end of the window.

    Args:
        rss_growth_bytes: growth of the process's resident memory in the window, not counting files and shared memory.
        threads: threads that ran the user's code in the window, the thread of the steps first; [] if no sampler ran.
        rss_levels_bytes: resident memory at the ends of steps spread evenly over the window; [] if not recorded.
        graph_nodes_growth: growth, over the window, of the number of autograd graph nodes that tensors keep alive; None
            if too many to count, and in older records.
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


class ProcessState(InspectedState, frozen=True, kw_only=True):
    """State and timing of one process that makes steps.

    Args:
        rank: None for a program of one process.
        stack: lines on the stack of the thread of the steps, those with most samples first; [] in older records.
    """

    pid: int
    rank: int | None = None
    world_size: int = 1
    step: str = ""
    timing: Timing | Unknown = Unknown("nothing was timed")
    compilation: Compilation | Unknown = Unknown("torch.compile was not used")
    collections: Collections | Unknown = Unknown("not asked")
    periodic: list[PeriodicWork] = []
    stack: list[StackLine] = []
    environment_changes: list[EnvironmentChange] = []


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
        facts: facts about machine, container, interpreter and environment; `window.*`: samples in the plain window.
        attribution: attribution of step time; Unknown without the plain window's timing or without a trace.
        memory: memory of each rank on each of its devices.
        delays: how a step answered delays of its parts.
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
    notes: list[str] = []
