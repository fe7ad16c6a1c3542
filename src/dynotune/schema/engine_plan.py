"""Data for a TensorRT engine: recorded shapes, profiles that cover them, and the plan of the engine."""

from typing import Annotated, Literal

import msgspec

from dynotune.schema.facts import Unknown

Shapes = dict[str, list[Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]]]
"""Shapes of a module's inputs, by the input's name."""


class Calls(msgspec.Struct, frozen=True):
    num: Annotated[int, msgspec.Meta(ge=1)]
    shapes: Shapes


class ShapeHistogram(msgspec.Struct, frozen=True, kw_only=True):
    """Document `shapes.json`: the input shapes of one kind of module. `dtypes`: by input, with torch's
    names."""

    schema: str = "dynotune.shapes/1"
    module: str = ""
    num_parameters: int = 0
    dtypes: dict[str, str] = {}
    calls: list[Calls]


class Profile(msgspec.Struct, frozen=True):
    """Shapes of one profile. `context_bytes`: memory of one context, scaled from torch's use; None if
    unmeasured."""

    num_calls: int
    min: Shapes
    opt: Shapes
    max: Shapes
    context_bytes: int | None = None


class Batch(msgspec.Struct, frozen=True):
    """One batch of the command: files of the module's inputs and of its float64 outputs, by name."""

    shapes: Shapes
    inputs: dict[str, str]
    outputs: dict[str, str]


class OnnxCheck(msgspec.Struct, frozen=True, tag="onnx-check"):
    """Check of an exported model against the module, in ONNX Runtime; errors are relative to the module in
    float64."""

    provider: str
    verdict: Literal["no worse", "worse", "undecided"]
    num_values: int
    error: float
    own_error: float
    batches: list[Batch]


class EnginePlan(msgspec.Struct, frozen=True, kw_only=True):
    """Document `plan.json`. `profiles`: the smallest first; `why`: the reason for their number.

    Args:
        wasted: share of the profiles' largest shapes that calls leave unused; `wasted_by_one`: with a single
            profile.
        workspace_bytes: limit for the kernels' scratch memory: the device memory that other uses leave free.
        most_error: tolerance of the outputs, relative to their root mean square; `error_from`: source of the
            tolerance.
    """

    schema: str = "dynotune.engine-plan/1"
    histogram: ShapeHistogram
    profiles: list[Profile]
    why: str
    wasted: float
    wasted_by_one: float
    workspace_bytes: int | Unknown = Unknown("dynotune memory was not run")
    onnx: OnnxCheck | Unknown = Unknown("no module was exported: --onnx")
    most_error: float = 0.02
    error_from: str = "what products in TF32 may change"
    script: str = ""
    notes: list[str] = []
