"""Measure how far an engine's outputs are from the eager model's."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from dynotune.runtime.errors import NumericsError

ErrorMeasure = Callable[[torch.Tensor, torch.Tensor], float]
"""A function of the expected and the actual output that returns their difference as one number; 0 means
equal."""

_TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}
_TF32_TOLERANCE = 5e-3


def default_tolerance(dtype: torch.dtype, device: torch.device) -> float:
    """Return the default tolerance, a relative error, for a model of `dtype`.

    float32 on a GPU leaves room for TF32, which convolutions use by default: its products are as coarse as
    float16's.
    """
    if dtype is torch.float32 and device.type == "cuda":
        return _TF32_TOLERANCE
    return _TOLERANCES.get(dtype, 0.0)


def relative_error(expected: torch.Tensor, found: torch.Tensor) -> float:
    """Return ‖found - expected‖ / ‖expected‖ in float64; for integers and booleans, the share of elements
    that differ.

    If infinities are not in the same places, or a NaN is not expected, the error is infinite.
    """
    if expected.numel() == 0:
        return 0.0
    if not (expected.is_floating_point() or expected.is_complex()):
        return float((expected != found).double().mean())
    wide = torch.complex128 if expected.is_complex() else torch.float64
    expected, found = expected.to(wide), found.to(wide)
    infinite = torch.isinf(expected)
    if bool(infinite.any()):
        if not torch.equal(expected[infinite], found[infinite]):
            return float("inf")
        expected, found = expected[~infinite], found[~infinite]
    error = float(torch.linalg.vector_norm(found - expected))
    size = float(torch.linalg.vector_norm(expected))
    # A comparison with NaN is false, so NaN would pass any tolerance.
    if error != error:
        return float("inf")
    return error / size if size else error


def outputs_error(expected: Any, found: Any, measure: ErrorMeasure = relative_error) -> float:
    """Return the largest error over all tensors of two nested outputs.

    Raises NumericsError if the outputs differ in structure or in shapes.
    """
    expected_leaves, expected_form = pytree.tree_flatten(expected)
    found_leaves, found_form = pytree.tree_flatten(found)
    if expected_form != found_form:
        raise NumericsError(
            "The engine's outputs have another structure than the eager model's.",
            hint="Build it without compile, or without graphs, to see which of them changes the outputs.",
        )
    worst = 0.0
    for want, got in zip(expected_leaves, found_leaves, strict=True):
        if not isinstance(want, torch.Tensor) or not isinstance(got, torch.Tensor):
            if isinstance(want, torch.Tensor) or isinstance(got, torch.Tensor) or want != got:
                return float("inf")
            continue
        if want.shape != got.shape:
            raise NumericsError(
                f"An output has the shape {tuple(got.shape)} where the eager model gives "
                f"{tuple(want.shape)}.",
                hint="With padding, every output must have the batch as dimension 0.",
            )
        worst = max(worst, measure(want, got))
    return worst


def first_nan(outputs: Any) -> int | None:
    """Return the index of the first output tensor that contains a NaN; None if none does."""
    leaves = pytree.tree_leaves(outputs)
    for index, leaf in enumerate(leaf for leaf in leaves if isinstance(leaf, torch.Tensor)):
        if leaf.is_floating_point() and bool(torch.isnan(leaf).any()):
            return index
    return None


def nonfinite_weights(model: torch.nn.Module, limit: int = 3) -> list[str]:
    """List up to `limit` names of parameters and buffers that contain NaN or infinity."""
    names = []
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            names.append(name)
            if len(names) == limit:
                break
    return names
