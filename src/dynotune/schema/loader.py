"""Loaders of data, and what it costs to make their batches."""

from typing import Literal

import msgspec

from dynotune.schema.facts import Unknown
from dynotune.schema.tensor import Tensor
from dynotune.schema.trace_summary import Place

SamplePartKind = Literal["read", "decode", "transform", "collate", "move", "pin", "wait", "own"]


class SamplePart(msgspec.Struct, frozen=True, kw_only=True):
    """A share of the time to make samples, spent at one source line of the user's own code.

    Args:
        part: "read": opening and reading files; "move": handing over to the process that draws; "wait":
            waiting for a lock, or asleep; "own": the program's own code.
        what: name of the library, file format, or transform class that takes the time.
        num: number of the sampler's observations; `wall_s`: the wall-clock seconds that these observations
            represent.
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
        fetch_s: mean wall time to make a batch; includes `collate_s` in the collate function and `decode_s`
            in known decoders of images and sound; the remainder is in the data set's items.
        cpu_s: mean processor time to make a batch.
        busy_share: share of the workers' time in which they made batches; None without workers.
        pin_s: mean time to copy a batch to page-locked memory; None if nothing was pinned.
        num_objects: Python objects in lists and dicts of the data set, estimated.
        num_threads: torch's threads in each worker; None without workers.
        num_distinct: number of distinct values among the first 4,096 in a plane of the batch's largest float
            tensor.
        private_growth_bytes: growth of the workers' unshared memory over `private_over_s` seconds, without
            their first second; None if not measured.
        parts: the time to make a sample by kind of work, the largest share first; [] if no sampler ran.
        read_bytes, storage_bytes: bytes read per batch, and bytes of these from storage rather than the page
            cache; None if the kernel does not count bytes.
        num_faults, system_s: page faults without a disk, and seconds in the kernel, per batch; None if they
            were not counted.
        decoded: paths of some files that were decoded.
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
    num_faults: float | None = None
    system_s: float | None = None
    decoded: list[str] = []


class Padding(msgspec.Struct, frozen=True, kw_only=True):
    """Padding in some batches of a loader.

    Args:
        by: how padding was recognised: the name of a mask, or a description.
        share: share of a batch's elements that are padding; `longest_share`: this share if each batch were as
            long as its longest row; `sorted_share`: if, in addition, rows of similar length were batched
            together.
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
        batch_is_pinnable: False if the class of a batch has no `pin_memory` and is no container that torch
            can pin.
        splits_by_worker: whether the IterableDataset or `worker_init_fn` asks for the worker's number; None
            for others.
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
