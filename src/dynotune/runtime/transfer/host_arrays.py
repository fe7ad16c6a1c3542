"""Read the arrays that users pass from the host: numpy arrays, tensors, bytes, or a list of these."""

from __future__ import annotations

import ctypes
import functools
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dynotune.runtime.errors import InputError
from dynotune.runtime.transfer.pinned import num_bytes_of


@dataclass(frozen=True, slots=True)
class HostArray:
    """An array that can be written into a dense tensor of the same shape and dtype.

    Args:
        tensor: a tensor that shares the array's memory, if torch can read that memory.
        parts: for a list, its elements; writing each into a row writes the whole array.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    write: Callable[[torch.Tensor], object]
    tensor: torch.Tensor | None = None
    parts: tuple[HostArray, ...] = ()

    @property
    def num_bytes(self) -> int:
        return num_bytes_of(self.shape, self.dtype)


def host_array(
    array: Any, dtype: torch.dtype | None = None, *, rows: torch.Tensor | None = None
) -> HostArray:
    """Wrap `array` so that it can be written elsewhere; nothing is copied yet.

    Args:
        array: numpy array, CPU tensor, object with a contiguous buffer (bytes, bytearray, memoryview), or a
            list or tuple of these with equal shape and dtype, which becomes one array with a new first axis.
        dtype: the required dtype; None accepts any dtype. Buffers are read as `dtype`, or as bytes.
        rows: indices, int64, of the wanted entries along each array's first axis; None takes all.

    Raises InputError if `array` is not an array on the host, is empty, has another dtype, or mixes sizes.
    """
    found = _stacked(array, dtype, rows) if isinstance(array, (list, tuple)) else _one(array, dtype, rows)
    if dtype is not None and found.dtype != dtype:
        raise InputError(
            f"An array of {found.dtype} was given where {dtype} is expected.",
            hint="Convert on the device: uint8 is a quarter of float32's bytes to upload.",
        )
    if math.prod(found.shape) == 0:
        raise InputError(
            f"An empty array was given, of shape {found.shape}.", hint="Skip frames that failed to decode."
        )
    return found


def _one(array: Any, dtype: torch.dtype | None, rows: torch.Tensor | None) -> HostArray:
    if isinstance(array, torch.Tensor):
        return _of_tensor(array, rows)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(array, numpy.ndarray):
        return _of_numpy(array, rows)
    if rows is None and isinstance(array, (bytes, bytearray, memoryview)):
        return _of_buffer(array, dtype or torch.uint8)
    raise InputError(
        f"{type(array).__name__} is not an array on the host.",
        hint="Give a numpy array, a CPU tensor, bytes, or a list of them.",
    )


def _of_tensor(tensor: torch.Tensor, rows: torch.Tensor | None) -> HostArray:
    if tensor.device.type != "cpu":
        raise InputError(
            f"The tensor is on {tensor.device} already.", hint="Stage host arrays only; use the tensor."
        )
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise InputError(
            f"A tensor of layout {tensor.layout}, dtype {tensor.dtype} cannot be staged; only dense ones."
        )
    return _seen_by_torch(tensor.detach(), rows)


def _seen_by_torch(source: torch.Tensor, rows: torch.Tensor | None) -> HostArray:
    if rows is None:
        return HostArray(tuple(source.shape), source.dtype, lambda into: into.copy_(source), source)
    shape = (len(rows), *source.shape[1:])
    return HostArray(shape, source.dtype, lambda into: torch.index_select(source, 0, rows, out=into))


def _of_numpy(array: Any, rows: torch.Tensor | None) -> HostArray:
    dtype = _torchs(array.dtype)
    if array.size and all(step >= 0 and not step % array.itemsize for step in array.strides):
        return _seen_by_torch(
            torch.from_numpy(array) if array.flags.writeable else _read_only(array, dtype), rows
        )
    # numpy copies what torch cannot look at: flipped views such as BGR to RGB.
    if rows is None:
        return HostArray(array.shape, dtype, lambda into: into.numpy().__setitem__(..., array))
    shape = (len(rows), *array.shape[1:])
    return HostArray(shape, dtype, lambda into: into.numpy().__setitem__(..., array[rows.numpy()]))


def _read_only(array: Any, dtype: torch.dtype) -> torch.Tensor:
    """Return a read-only numpy array as a tensor that shares its memory and must not be written to."""
    num_bytes = array.itemsize + sum(
        (num - 1) * step for num, step in zip(array.shape, array.strides, strict=True)
    )
    memory = (ctypes.c_ubyte * num_bytes).from_address(array.ctypes.data)
    memory.owner = array  # kept as long as the memory is
    steps = [step // array.itemsize for step in array.strides]
    return torch.frombuffer(memory, dtype=dtype).as_strided(array.shape, steps)


@functools.lru_cache(maxsize=64)
def _torchs(dtype: Any) -> torch.dtype:
    """Return the torch dtype for a numpy dtype."""
    try:
        return torch.from_numpy(sys.modules["numpy"].empty(0, dtype)).dtype
    except (TypeError, ValueError) as error:
        raise InputError(f"An array of numpy's dtype {dtype!r} cannot be a tensor: {error}") from error


def _of_buffer(buffer: bytes | bytearray | memoryview, dtype: torch.dtype) -> HostArray:
    seen = memoryview(buffer)
    if not seen.c_contiguous:
        raise InputError("A memoryview with gaps was given.", hint="Give a contiguous one, or a numpy array.")
    if seen.nbytes % dtype.itemsize:
        raise InputError(
            f"{seen.nbytes} bytes are not a whole number of {dtype}, {dtype.itemsize} bytes each."
        )
    shape = (seen.nbytes // dtype.itemsize,)
    if isinstance(buffer, bytes):
        address = ctypes.cast(ctypes.c_char_p(buffer), ctypes.c_void_p).value
        return HostArray(shape, dtype, lambda into: _copy_from(into, address, owner=buffer))
    if not seen.readonly and seen.nbytes:
        source = torch.frombuffer(seen, dtype=torch.uint8)
        return HostArray(shape, dtype, lambda into: into.view(torch.uint8).copy_(source))
    return HostArray(shape, dtype, lambda into: _copy_bytes(into, seen.cast("B")))


def _copy_from(into: torch.Tensor, address: int | None, *, owner: object) -> None:
    """Copy from read-only memory with torch's threads; torch itself accepts only writable memory without a
    warning.

    `owner` keeps the memory alive during the copy.
    """
    assert address is not None
    num_bytes = into.numel() * into.element_size()
    memory = (ctypes.c_ubyte * num_bytes).from_address(address)
    into.view(-1).view(torch.uint8).copy_(torch.frombuffer(memory, dtype=torch.uint8))


def _copy_bytes(into: torch.Tensor, source: memoryview) -> None:
    memory = (ctypes.c_ubyte * source.nbytes).from_address(into.data_ptr())
    memoryview(memory).cast("B")[:] = source


def _stacked(arrays: Sequence[Any], dtype: torch.dtype | None, rows: torch.Tensor | None) -> HostArray:
    if not arrays:
        raise InputError("An empty list was given.", hint="Skip empty batches.")
    parts = tuple(_one(array, dtype, rows) for array in arrays)
    kinds = sorted({(part.shape, str(part.dtype)) for part in parts})
    if len(kinds) > 1:
        listed = ", ".join(f"{shape} of {name}" for shape, name in kinds)
        raise InputError(
            f"A list is staged as one array, and its arrays differ: {listed}.",
            hint="Stage arrays of different sizes one by one.",
        )

    tensors = [part.tensor for part in parts if part.tensor is not None]

    def write(into: torch.Tensor) -> None:
        if len(tensors) == len(parts):
            # One call: each would have to get Python's lock back, which other threads want too.
            torch.stack(tensors, out=into)
            return
        for row, part in zip(into, parts, strict=True):
            part.write(row)

    return HostArray((len(parts), *parts[0].shape), parts[0].dtype, write, parts=parts)
