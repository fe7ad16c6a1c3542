"""What was observed of one command on one machine: all that rules look at, and nothing that they conclude."""

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
"""The fact of environment variables, with spaces between, by which the program gave each of its two runs a compile
cache of its own."""


class Tensor(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor as it was met.

    `pinned`: None where it is not in host memory. `channels_last`: None unless it has four dimensions.
    """

    shape: list[int]
    dtype: str
    device: str
    num_bytes: int
    pinned: bool | None = None
    channels_last: bool | None = None


class SamplePart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the time in which samples are made, at one line of the user's own.

    Args:
        part: "read": opening and reading; "move": to the process that draws; "wait": for a lock, or
            asleep; "own": the program's own code.
        what: a library, a format, or a transform's class.
        num: times that it was seen; `wall_s`: the time that these stand for.
        function, text: the line, "" where none of the user's own is on the stack.
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
        fetch_s: mean wall time of making one; of it `collate_s` in the collate function, `decode_s` in known decoders
            of images and sound, and the rest in the data set's items.
        cpu_s: mean processor time of one.
        busy_share: of the workers' time, in which they made batches; None without workers.
        pin_s: mean time in which one was copied to page-locked memory; None where nothing was pinned.
        num_objects: Python objects that the data set holds in lists and dicts, estimated.
        num_threads: of torch in each worker; None without workers.
        num_distinct: values among the first 4,096 of one plane of the batch's largest floating-point tensor.
        private_growth_bytes: of memory that the workers share with nobody, over `private_over_s`, their first second
            left out; None where it was not told.
        parts: where the time of a sample goes, the largest first; [] where nobody looked.
        read_bytes, storage_bytes: that the makers read for a batch, and of it from storage and not from the page cache;
            None where the kernel does not say.
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
        by: what tells it: the name of a mask, or in words.
        share: of the places in a batch; `longest_share`: were each batch as long as its longest row; `sorted_share`:
            were rows of like length together besides.
    """

    by: str
    num_batches: int
    share: float
    longest_share: float
    sorted_share: float


class Loader(msgspec.Struct, frozen=True, kw_only=True):
    """A torch DataLoader that the program drew from.

    Args:
        num_items, num_batches: None where it does not tell its length.
        context: how its workers are started; None without workers.
        num_begun: how often it was iterated so far; `num_drawn`: batches so far.
        batch: tensors of one batch as it came out of the loader; None where none was looked at.
        batch_is_pinnable: false where its class has no `pin_memory` and is no container that torch knows.
        splits_by_worker: its IterableDataset, or its `worker_init_fn`, asks which worker it is in; None for others.
        padding: None where nothing tells how long the rows of its batches are.
        place: where it was first iterated.
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
    """One call of an outermost module, looked at after warm-up.

    Args:
        autocast: type of the device's autocast region; None outside of one.
        input_requires_grad: any of its inputs does; None in older records.
        output_requires_grad: None where the output holds no tensor.
        num_input_shapes: distinct shapes of its inputs since it was found; None where they were not followed.
        num: calls that were looked at; with inputs that were all longer in one dimension than those of the call before,
            by at most half, `num_grown`, by `growth` in all; and whose gradients are exchanged between ranks
            `num_synced`.
        seen_share: of the looks at the thread that makes the steps, those inside of a call from this place; None where
            nobody looked.
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
    """The weights of an embedding that is trained. `sparse`: its gradients hold the rows that were asked for alone."""

    num_rows: int
    num_bytes: int
    sparse: bool


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """An outermost module that the steps call.

    Args:
        channels_last_share: of the elements of four-dimensional weights; None without such.
        num_training: modules in it that change between training and evaluation (dropout, batch norm) and are in
            training mode.
        num_updated: of its tensors, those that an optimizer has.
        table: its largest embedding that is trained; None without one.
        wrapper: "DataParallel", "DistributedDataParallel", "FullyShardedDataParallel" or "".
        ddp: arguments of DistributedDataParallel, and `unused_parameters` where it told.
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
        foreach, fused: as its first group has them; None: torch chooses.
        groups_differ: in foreach or fused, so that a group sets them for itself.
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
    """The caching allocator of one device: levels at the window's end, growth of counters within it.

    Args:
        allocated_growth_bytes: level at the window's end less that at its begin.
        allocated_levels_bytes: at ends of steps spread evenly over the window, its two ends included; [] where only
            these two are known.
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
        breaks, recompilations: reasons, the commonest first: "3x torch/…: reason".
        limit_reached: functions that hit the limit of recompilations and run eagerly since.
        cudagraph_skips: reasons why CUDA graphs were not used.
        skipped: reasons why functions were not compiled at all, as for a break inside a loop.
        num_cudagraphs_in_window: CUDA graphs that torch.compile recorded within the window; None where not told.
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
    """A line of the user's own at which a thread was seen.

    Args:
        function: with file and line, `train.py(31): step`; a package's where nothing on the stack is the user's.
        text: the line as it is written, without secrets; "" where there is no such file.
        callee: the function of a library that the line calls; "" where it runs itself, or calls what is written in C.
        leaf: the function that ran, where it is another than `function`.
        inside: "loader": a DataLoader asked for it; "event-loop": the loop waits, and the line is where a task awaits.
        num: times that it was seen.
        cpu_s: processor time of the thread since it was looked at before, summed up; None where it was not asked.
        least_cpu_s: each time the lesser of that and of the time until it was looked at again; None in older records.
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
    """A thread that was looked at within the window.

    `cpu_s`: processor time that it took meanwhile; None where the kernel does not say. `parts`: where the time of the
    samples goes that it makes; of the thread of the steps, what it does for a loader.
    """

    name: str = ""
    of_steps: bool = False
    num: int
    cpu_s: float | None
    lines: list[Line] = []
    parts: list[SamplePart] = []


class PeriodicWork(msgspec.Struct, frozen=True, kw_only=True):
    """Work that only some steps do, and are longer for.

    Args:
        kind: as far as names of functions and files tell.
        function: the line at which the program begins it, `train.py(70): main`; `text`: as it is written.
        callee: the function in which most of it is; "" where the line itself takes the time.
        num_steps: of the window, in which it was seen; `every`: so many steps lie from one to the next, median.
        share: of the window.
    """

    kind: PeriodicKind
    function: str
    text: str = ""
    callee: str = ""
    num_steps: int
    every: int | None = None
    share: float


class SlowStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step among the slowest hundredth. `causes`: what happened in it; "work" is in `ProcessState.periodic`."""

    index: int
    step_s: float
    wait_s: float
    causes: list[Why] = []


class Timing(msgspec.Struct, frozen=True, kw_only=True, tag="timing"):
    """Timing of the plain window: nothing recorded it, and the device was synchronised at its two ends only.

    Args:
        step_s: the window over its steps.
        wait_s: mean time a step inside `next()` of loaders, and `iter()` where an epoch begins; None where no torch
            loader was drawn from.
        epoch_begin_s: median of steps that begin an epoch; None without such.
        typical_step_s: what a step without any of the events in `slow` took, median.
        steady: the steps had become steady before it began.
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
    """State of one process that makes steps, as the agent saw it at the end of its window.

    Args:
        rss_growth_bytes: of the process's resident memory within the window, without files and shared memory.
        threads: that ran code of the user's own within the window, that of the steps first; [] where nobody looked.
        rss_levels_bytes: of the process, at ends of steps spread evenly over the window; [] where not followed.
        graph_nodes_growth: nodes of autograd's graph that its tensors hold on to at the window's end, beyond those at
            its begin; None where they are too many to count, and in older records.
        graph_nodes: all of them at its end.
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
    """All that is known of a command, for the rules. `dynotune doctor` knows the facts alone.

    Args:
        facts: of machine, container, interpreter and environment; `window.*` of the samples beside the plain window.
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
