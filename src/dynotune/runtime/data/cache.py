"""Keep samples on disk or in memory, so that each is decoded only once."""

import contextlib
import fcntl
import io
import json
import os
import sys
import tempfile
import warnings
import zlib
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from dynotune.runtime.errors import InputError

__all__ = ["SampleCache"]


class SampleCache(Dataset):  # type: ignore[misc]
    """A map-style dataset that computes each sample once, and then reads it from files in a folder.

    Workers, the ranks of a host and later jobs may share the folder. A folder in `/dev/shm` is memory, and
    counts towards the container's memory limit. Apply random augmentation after the cache: a cached sample
    never changes.

    Samples are CPU tensors, numpy arrays, numbers, strings and None, also in tuples, lists and dicts. Files
    contain no pickles; damaged files are computed again. No sample is evicted, because each epoch draws every
    sample. When less than a 20th of the file system is free, or a write fails, one warning is given and no
    further sample is kept.

    Args:
        dataset: the dataset to cache; also available as the attribute `dataset`.
        folder: folder of the files; it is created if necessary. Remove it to free the space.
        max_bytes: limit on all samples in the folder together.
        key: text that identifies the samples. Choose another key when files or transforms change.

    Raises:
        InputError: if the folder holds other samples or other files, or a sample cannot be kept.
    """

    def __init__(self, dataset: Any, folder: str | os.PathLike[str], *, max_bytes: int, key: str) -> None:
        self.dataset, self.folder, self.max_bytes, self._num = dataset, Path(folder), max_bytes, len(dataset)
        self._is_stopped, self._unsaid = False, _unsaid()
        self._holds = json.dumps(f"{key}: {self._num} samples of {type(dataset).__qualname__}").encode()
        self._marker, found = self.folder / "samples.txt", b""
        try:
            if self.folder.exists() and any(self.folder.iterdir()):
                found = self._marker.read_bytes()
            if max_bytes < 1 or found[20:] not in (b"", self._holds):
                raise ValueError(
                    f"it has {found[20:220]!r}, not {self._holds!r}" if found else "max_bytes is below 1"
                )
        except (OSError, ValueError) as error:
            hint = "Choose another folder, or remove this one."
            raise InputError(f"{folder} cannot be the cache: {error}.", hint=hint) from error

    def __len__(self) -> int:
        return self._num

    def __getitem__(self, index: int) -> Any:
        path = self.folder / f"{index % 1000:03}" / f"{index:d}"
        is_damaged = False
        with contextlib.suppress(OSError):
            data = path.read_bytes()
            is_damaged = True
            with contextlib.suppress(Exception):  # a damaged file raises anything
                return _decoded(memoryview(bytearray(data)), self._holds)
        sample = self.dataset[index]
        if not self._is_stopped and 0 <= index < self._num:
            data = _encoded(sample, self._holds)
            try:
                self._store(path, data, is_damaged)
            except (OSError, ValueError) as error:
                self._is_stopped = True
                if self._unsaid.read(8):
                    warnings.warn(
                        f"{self.folder} takes no more samples: {error}", RuntimeWarning, stacklevel=2
                    )
        return sample

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_unsaid": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _unsaid=_unsaid())

    def _store(self, path: Path, data: bytes, is_damaged: bool) -> None:
        """Count the bytes before writing: if the process is killed in between, less is stored than
        counted."""
        self.folder.mkdir(0o700, parents=True, exist_ok=True)
        if not self._count(len(data)):
            return
        is_kept = False
        try:
            if (disk := os.statvfs(self.folder)).f_bavail * 20 < disk.f_blocks:
                raise OSError("less than a 20th of the file system is free")
            path.parent.mkdir(0o700, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path.parent) as file:
                file.write(data)
                file.flush()
                if is_damaged:
                    path.unlink(missing_ok=True)
                with contextlib.suppress(FileExistsError):  # another process was faster
                    path.hardlink_to(file.name)
                    is_kept = True
        finally:
            if not is_kept:
                self._count(-len(data))

    def _count(self, num_bytes: int) -> bool:
        """Add to the bytes counted in the folder, unless the total would exceed the limit."""
        handle = os.open(self._marker, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            found = os.read(handle, 1 << 16)
            counted = int(found[:20] or 0)
            fits = num_bytes < 0 or counted + num_bytes <= self.max_bytes
            os.pwrite(handle, b"%020d" % (counted + num_bytes * fits) + (found[20:] or self._holds), 0)
            return fits
        finally:
            fcntl.flock(handle, fcntl.LOCK_UN)  # a child that was forked meanwhile has the handle, too
            os.close(handle)


def _unsaid() -> io.FileIO:
    """Return a pipe shared with forked children, from which only one process can read: that process warns."""
    return io.FileIO(os.eventfd(1, os.EFD_NONBLOCK | os.EFD_CLOEXEC))


def _encoded(sample: Any, holds: bytes) -> bytes:
    """Serialise a sample: checksum, length of its structure, structure in JSON, contents of its arrays."""
    body = bytearray()
    structure = json.dumps(_taken_apart(sample, body)).encode()
    structure += b" " * (-(8 + len(structure)) % 64)
    data = len(structure).to_bytes(4, "little") + structure + body
    return zlib.crc32(data, zlib.crc32(holds)).to_bytes(4, "little") + data


def _decoded(data: memoryview, holds: bytes) -> Any:
    if zlib.crc32(data[4:], zlib.crc32(holds)).to_bytes(4, "little") != data[:4]:
        raise ValueError("another checksum")
    begin = 8 + int.from_bytes(data[4:8], "little")
    return _put_together(json.loads(bytes(data[8:begin])), data[begin:])


def _taken_apart(value: Any, body: bytearray) -> Any:
    kind, of, numpy = type(value), "", sys.modules["numpy"]
    if value is None or kind in (bool, int, float, str):
        return value
    if kind in (tuple, list, dict):
        values = [list(value), list(value.values())] if kind is dict else value
        return [kind.__name__, *(_taken_apart(each, body) for each in values)]
    if (
        kind is torch.Tensor
        and value.layout is torch.strided
        and value.device.type == "cpu"
        and not value.is_quantized
    ):
        plain = value.detach().resolve_conj().resolve_neg().contiguous()
        of, value = str(value.dtype)[6:], plain[..., None].view(torch.uint8).numpy()
    elif (
        not (kind is numpy.ndarray or isinstance(value, numpy.generic)) or value.dtype.kind not in "biufcmMSU"
    ):
        hint = (
            "Make tensors, arrays, numbers or strings of it before the cache; numpy.asarray(…) of a picture."
        )
        raise InputError(f"A {kind.__module__}.{kind.__qualname__} in a sample cannot be kept.", hint=hint)
    body += bytes(-len(body) % 64)
    begin = len(body)
    body += value.tobytes()
    return [kind.__name__, of, value.dtype.str, *value.shape, begin]


def _put_together(structure: Any, body: memoryview) -> Any:
    """Return the sample; its arrays are views of `body`."""
    if not isinstance(structure, list):
        return structure
    kind, *rest = structure
    if kind in ("tuple", "list", "dict"):
        values = [_put_together(each, body) for each in rest]
        return (
            dict(zip(*values, strict=True))
            if kind == "dict"
            else tuple(values)
            if kind == "tuple"
            else values
        )
    of, dtype, *shape, begin = rest
    array = sys.modules["numpy"].ndarray(shape, dtype, body, begin)
    if array.dtype.hasobject:
        raise ValueError("pointers are not followed")
    if of:
        return torch.from_numpy(array).view(getattr(torch, of))[..., 0]
    return array if kind == "ndarray" else array[()]
