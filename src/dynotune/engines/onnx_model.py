"""Read which inputs an ONNX model declares, and the shapes that they are given."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from dynotune.schema import document, untrusted
from dynotune.schema.engine_plan import Calls, ShapeHistogram
from dynotune.schema.errors import CannotRunHere, RecordError, UsageError, may_fail

MOST_BYTES = (1 << 31) - 1
"""Largest accepted model file in bytes: the limit of a Protobuf message."""


def declared_inputs(path: Path) -> dict[str, tuple[str, list[int | None]]]:
    """Return type and sizes of each input; None for a size that varies.

    Raises CannotRunHere: the package onnx is missing. RecordError: the file is not a usable model.
    """
    try:
        import onnx
    except ImportError:
        raise CannotRunHere(
            "ONNX models take the package onnx.", hint="pip install 'dynotune[onnx]'"
        ) from None
    with (
        may_fail(f"read {path}", "Give the file that the export wrote.", RecordError),
        untrusted.opened(path) as file,
    ):
        num_bytes = os.fstat(file.fileno()).st_size
    if num_bytes > MOST_BYTES:
        raise RecordError(
            f"{path} has over 2 GB.", hint="Export it again, with its weights in a file of their own."
        )
    try:
        onnx.checker.check_model(str(path))
        graph = onnx.load_model(str(path), load_external_data=False).graph
        weights = {one.name for one in graph.initializer}
        inputs = [(one.name, one.type.tensor_type) for one in graph.input if one.name not in weights]
        type_of, dims = onnx.helper.tensor_dtype_to_np_dtype, [one.shape.dim for _, one in inputs]
        sizes = [[None if one.dim_value in (0, -1) else one.dim_value for one in each] for each in dims]
        return {
            name: (str(type_of(one.elem_type)), each) for (name, one), each in zip(inputs, sizes, strict=True)
        }
    except Exception as error:  # protobuf, the checker and numpy have unrelated exception types
        reason = " ".join(str(error).split())[:300]
        raise RecordError(f"{path} is no valid ONNX model: {reason}", hint="Export it again.") from error


def shapes_for(model: Path, given: Sequence[str]) -> tuple[ShapeHistogram, bool]:
    """Return the given shapes, or those that the model declares, and whether the model's sizes vary.

    Args:
        given: files of shapes, or the shapes of one call each, `x:1x3x640x640,mask:1x640`.

    Raises UsageError: the model does not take the shapes, or a varying dimension has none.
    """
    declared = declared_inputs(model)
    example = ",".join(
        f"{name}:{'x'.join(str(one or 1) for one in each)}" for name, (_, each) in declared.items()
    )
    is_dynamic = any(None in sizes for _, sizes in declared.values())
    if is_dynamic and not given:
        raise UsageError(
            f"Sizes of {model} vary. Say which are used.", hint=f"For example: --shapes {example}"
        )
    calls = [call for one in given or [example] for call in _calls(one)]
    for call in calls:
        pairs = [(sizes, declared[name][1]) for name, sizes in call.shapes.items() if name in declared]
        fits = [
            len(ours) == len(its) and all(b in (None, a) for a, b in zip(ours, its, strict=True))
            for ours, its in pairs
        ]
        if not (all(fits) and len(fits) == len(declared) == len(call.shapes)):
            raise UsageError(f"{model} does not take {call.shapes}.", hint=f"For example: --shapes {example}")
    dtypes = {name: dtype for name, (dtype, _) in declared.items()}
    return ShapeHistogram(module=str(model), dtypes=dtypes, calls=calls), is_dynamic


def _calls(given: str) -> list[Calls]:
    if given.endswith(".json"):
        return document.read(Path(given), ShapeHistogram).calls
    parts = [one.rpartition(":") for one in given.split(",")]
    if not all(name and re.fullmatch(r"(\d{1,9}(x\d{1,9})*)?", sizes) for name, _, sizes in parts):
        raise UsageError(
            f"{given!r} names no shapes that an engine takes.", hint="For example: x:1x3x640x640"
        )
    return [Calls(1, {name: [int(one) for one in sizes.split("x") if one] for name, _, sizes in parts})]
