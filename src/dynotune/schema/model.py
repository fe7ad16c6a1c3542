"""Models and optimizers that the steps of a command call."""

import msgspec

from dynotune.schema.facts import Facts
from dynotune.schema.tensor import Tensor
from dynotune.schema.trace_summary import Place


class ModelCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call of an outermost module (a model), observed after warm-up.

    Args:
        autocast: type of the autocast region around the call; None outside of autocast regions.
        input_requires_grad: whether any input requires gradients; None in older records.
        output_requires_grad: whether any output requires gradients; None if the output has no tensor.
        num_input_shapes: number of distinct input shapes since the module was found; None if not counted.
        num: number of observed calls. `num_grown`: calls with inputs that were all longer in one dimension
            than in the call before, by at most half; `growth`: total growth. `num_synced`: calls that
            exchange gradients between ranks.
        seen_share: share of the sampler's observations of the step thread that were inside a call from this
            place; None if no sampler ran.
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
    """Weights of a trained embedding. `sparse`: whether the gradients contain only the rows that were
    used."""

    num_rows: int
    num_bytes: int
    sparse: bool


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """An outermost module that the steps call.

    Args:
        channels_last_share: channels_last share of four-dimensional weights, by elements; None without such
            weights.
        num_training: number of modules in training mode that behave differently in evaluation (dropout, batch
            norm).
        num_updated: number of the model's tensors that an optimizer updates.
        table: the model's largest trained embedding; None without a trained embedding.
        wrapper: class around the model: "DataParallel", "DistributedDataParallel", "FullyShardedDataParallel"
            or "".
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
