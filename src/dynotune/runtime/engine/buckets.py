"""Define shape buckets: what an engine is built for, and which bucket serves a call."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dynotune.runtime.errors import InputError

Shapes = tuple[tuple[int, ...], ...]
"""The shape of each input, in order."""

_MAX_REMEMBERED = 1024
"""Largest number of shapes without a bucket of their own to remember: an endless variety must not fill
memory."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """One combination of input shapes and dtypes for which the engine is built.

    Args:
        dtypes: dtypes of the inputs as the model receives them.
        example: the user's own inputs, or None if only shapes were given.
    """

    shapes: Shapes
    dtypes: tuple[torch.dtype, ...]
    example: tuple[torch.Tensor, ...] | None = None

    @property
    def num_elements(self) -> int:
        return sum(torch.Size(shape).numel() for shape in self.shapes)

    @property
    def batch(self) -> int | None:
        """Return the number of rows of the first input; None if it has no dimensions."""
        return self.shapes[0][0] if self.shapes[0] else None

    def __str__(self) -> str:
        return " and ".join("×".join(map(str, shape)) or "scalar" for shape in self.shapes)

    def samples(self, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
        """Make seeded inputs on `device`, to build and check with.

        From shapes alone, values are uniform in [0, 1). From an example, seed 0 gives the example itself, any
        other seed its values in another order; integers and booleans stay as they are, as they may be indices
        or masks.
        """
        generator = torch.Generator(device).manual_seed(seed)
        if self.example is None:
            return tuple(
                torch.rand(shape, generator=generator, device=device).to(dtype)
                for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
            )
        return tuple(
            _shuffled(tensor.detach().to(device, dtype), generator if seed else None)
            for tensor, dtype in zip(self.example, self.dtypes, strict=True)
        )


def _shuffled(tensor: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
    if generator is None or not tensor.is_floating_point():
        return tensor.clone()
    order = torch.randperm(tensor.numel(), generator=generator, device=tensor.device)
    return tensor.flatten()[order].view(tensor.shape)


def parse_buckets(shapes: Any, dtype: torch.dtype) -> list[Bucket]:
    """Parse the argument `shapes` of an engine into buckets, largest first.

    Args:
        shapes: a list of buckets or a single bucket; a bucket is a shape `(B, C, H, W)`, an example tensor or
            array, or a tuple of these, one per input of the model.
        dtype: dtype of floating-point inputs, as the model receives them.

    Raises InputError if the form is wrong, a list is empty, a dimension is below 1, a bucket occurs twice, or
    buckets differ in the number or the dtypes of their inputs.
    """
    listed = shapes if isinstance(shapes, list) else [shapes]
    buckets = [_bucket(one, dtype) for one in listed]
    if not buckets:
        raise InputError("shapes is empty.", hint="Name at least one shape, such as [(1, 3, 640, 640)].")
    seen: set[Shapes] = set()
    for bucket in buckets:
        if bucket.shapes in seen:
            raise InputError(f"The shape {bucket} is named twice.", hint="Name each bucket once.")
        seen.add(bucket.shapes)
        if bucket.dtypes != buckets[0].dtypes:
            raise InputError(
                f"The buckets {buckets[0]} and {bucket} differ in the number or the dtypes of their inputs.",
                hint="Build one engine for each.",
            )
    # Largest first: smaller graphs then fit into the memory that the largest one needed.
    return sorted(buckets, key=lambda bucket: -bucket.num_elements)


def _bucket(one: Any, dtype: torch.dtype) -> Bucket:
    inputs = list(one) if isinstance(one, tuple) and one and not _is_shape(one) else [one]
    if all(_is_shape(item) for item in inputs):
        shapes = tuple(tuple(item) for item in inputs)
        if any(size < 1 for shape in shapes for size in shape):
            raise InputError(
                f"The shape {one} has a dimension below 1.", hint="Every dimension must be at least 1."
            )
        return Bucket(shapes, (dtype,) * len(shapes))
    if any(_is_shape(item) for item in inputs):
        raise InputError(
            "A bucket mixes shapes and example inputs.",
            hint="Give an example tensor for every input of that bucket, or a shape for every one.",
        )
    tensors = tuple(as_tensor(item, "An example input") for item in inputs)
    for tensor in tensors:
        if tensor.numel() == 0:
            raise InputError("An example input is empty.", hint="Every dimension must be at least 1.")
    return Bucket(
        tuple(tuple(tensor.shape) for tensor in tensors),
        tuple(dtype if tensor.is_floating_point() else tensor.dtype for tensor in tensors),
        tensors,
    )


def _is_shape(item: Any) -> bool:
    return (
        isinstance(item, Sequence)
        and len(item) > 0
        and all(isinstance(size, int) and not isinstance(size, bool) for size in item)
    )


def as_tensor(value: Any, what: str) -> torch.Tensor:
    """Return `value` as a tensor that shares its memory; accepts numpy arrays and objects with
    `__array_interface__`.

    Raises InputError if the value is neither a tensor nor an array.
    """
    if isinstance(value, torch.Tensor):
        return value
    if hasattr(value, "__array_interface__"):
        try:
            return torch.as_tensor(value)
        except (TypeError, ValueError) as error:
            raise InputError(f"{what} cannot become a tensor: {error}", hint="Convert it first.") from error
    raise InputError(
        f"{what} is a {type(value).__name__}, not a tensor.",
        hint=(
            "Pass tensors or numpy arrays, by position; wrap a model that takes anything else in a small "
            "nn.Module."
        ),
    )


class Padding:
    """Dimensions in which a call may be padded to a bucket, and the fill values.

    `pad`: "batch" pads dimension 0 with zeros; a mapping gives the fill value for each dimension; None pads
        nothing.
    """

    def __init__(self, pad: str | Mapping[int, float] | None) -> None:
        if pad is None:
            self.fills: dict[int, float] = {}
        elif pad == "batch":
            self.fills = {0: 0.0}
        elif isinstance(pad, Mapping) and all(isinstance(dim, int) and dim >= 0 for dim in pad):
            self.fills = {dim: float(pad[dim]) for dim in sorted(pad)}
        else:
            raise InputError(
                f"pad={pad!r} is not understood.",
                hint=(
                    'Use "batch", a mapping of dimensions (0 or more) to fill values such as {2: 0, 3: '
                    "0}, or None."
                ),
            )

    def fits(self, shapes: Shapes, bucket: Bucket) -> bool:
        """Return whether inputs of `shapes` can be padded to `bucket`."""
        if len(shapes) != len(bucket.shapes):
            return False
        return all(
            len(shape) == len(target)
            and all(
                size == wanted or (dim in self.fills and 0 < size < wanted)
                for dim, (size, wanted) in enumerate(zip(shape, target, strict=True))
            )
            for shape, target in zip(shapes, bucket.shapes, strict=True)
        ) and self._same_batch(shapes, bucket)

    @staticmethod
    def _same_batch(shapes: Shapes, bucket: Bucket) -> bool:
        """Return whether the other inputs have as many rows as the first, or as the bucket's (no batch
        dimension)."""
        if not shapes[0]:
            return True
        return all(
            not shape or shape[0] == target[0] or shape[0] == shapes[0][0]
            for shape, target in zip(shapes, bucket.shapes, strict=True)
        )

    def write(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy `source` into the corner of `target` with conversion, and fill the rest; on the current
        stream."""
        if source.shape == target.shape:
            target.copy_(source)
            return
        corner = target
        for dim, fill in self.fills.items():
            if dim < source.dim() and source.shape[dim] < target.shape[dim]:
                size = source.shape[dim]
                target.narrow(dim, size, target.shape[dim] - size).fill_(fill)
                corner = corner.narrow(dim, 0, size)
        corner.copy_(source)


class BucketTable:
    """Table that finds the bucket for given shapes: an exact match, else the smallest bucket that padding
    reaches.

    `buckets`: the buckets that were built. `padding`: dimensions that may be padded.
    """

    def __init__(self, buckets: Sequence[Bucket], padding: Padding) -> None:
        self._exact = {bucket.shapes: bucket for bucket in buckets}
        self._by_size = sorted(buckets, key=lambda bucket: bucket.num_elements)
        self._padding = padding
        self._found: dict[Shapes, Bucket | None] = {}

    def find(self, shapes: Shapes) -> Bucket | None:
        """Return the bucket for inputs of `shapes`, or None."""
        exact = self._exact.get(shapes)
        if exact is not None or not self._padding.fills:
            return exact
        if shapes not in self._found:
            if len(self._found) >= _MAX_REMEMBERED:
                self._found.clear()
            self._found[shapes] = next((b for b in self._by_size if self._padding.fits(shapes, b)), None)
        return self._found[shapes]
