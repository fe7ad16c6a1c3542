"""Samples that are made once: decoded or resized, kept in RAM or on a disk."""

from __future__ import annotations

import fcntl
import hashlib
import io
import logging
import os
import shutil
import tempfile
import weakref
import zlib
from collections.abc import Callable, Sized
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from dynotune.runtime.errors import InputError

__all__ = ["CachedDataset"]

_log = logging.getLogger(__name__)


class CachedDataset(Dataset):  # type: ignore[misc]
    """A map-style data set of which each sample is made once, by whichever process needs it first.

    Workers, ranks and other jobs may share a folder: a sample appears whole or not at all, and a damaged one is made
    again. Once the cache or the disk is full, the rest is made as without it. Samples are pickled.

    Args:
        dataset: what it does must not be random: put augmentation into `transform`.
        key: what the samples are: name, version, size. The cache is found by it, the data set's class and length, and
            three of its samples: those of another data set are never taken. Change it when other samples change.
        max_bytes: of all samples in the cache.
        folder: where; by default in RAM (`/dev/shm`), for this process and its workers, until it ends.
        transform: called with each sample.

    Attributes:
        num_hits, num_misses: samples that this process took from the cache, and had to make.

    Raises:
        InputError: `max_bytes` is negative, the data set has no length, or others can write into the folder.
    """

    def __init__(
        self, dataset: Any, key: str, max_bytes: int, folder: str | os.PathLike[str] | None = None,
        transform: Callable[[Any], Any] | None = None,
    ) -> None:  # fmt: skip
        if max_bytes < 0 or not isinstance(dataset, Sized) or not hasattr(dataset, "__getitem__"):
            raise InputError("A cache needs a size of 0 or more, and a data set with a length and an index.")
        self.dataset, self.key, self.max_bytes, self.transform = dataset, key, max_bytes, transform
        self.num_hits, self.num_misses, self._is_full = 0, 0, False
        self._room: Path | None = None
        if folder is None:
            folder = tempfile.mkdtemp(prefix="dynotune-cache-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
            weakref.finalize(self, _remove, folder, os.getpid())
        self._folder = Path(folder)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (there := self._folder.stat()).st_uid != os.getuid() or there.st_mode & 0o022:
            raise InputError(f"Others can write into {folder}: loading what they wrote would run their code.")

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        index = range(len(self))[index]
        path = self._room_of_this() / str(index // 1000) / str(index)
        try:
            data = path.read_bytes()
            if int.from_bytes(data[:4], "big") != zlib.crc32(memoryview(data)[4:]):
                raise ValueError("damaged")
            sample = torch.load(io.BytesIO(data[4:]), weights_only=False)
            self.num_hits += 1
        except Exception:  # it is not there, damaged, or of a class that is no more
            sample = self.dataset[index]
            self.num_misses += 1
            if not self._is_full:
                self._keep(path, sample)
        return sample if self.transform is None else self.transform(sample)

    def _room_of_this(self) -> Path:
        """The folder of this data set in the cache."""
        if self._room is None:
            places = {0, len(self) // 2, len(self) - 1}
            probes = [hashlib.sha256(_pickled(self.dataset[at])).hexdigest() for at in sorted(places)]
            kind = type(self.dataset)
            named = repr((kind.__module__, kind.__qualname__, len(self), self.key, probes))
            self._room = self._folder / hashlib.sha256(named.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        return self._room

    def _keep(self, path: Path, sample: Any) -> None:
        written = None
        try:
            data = _pickled(sample)
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as written:
                written.write(zlib.crc32(data).to_bytes(4, "big") + data)
            self._publish(Path(written.name), path)
        except OSError as error:
            self._is_full = True
            _log.warning("From here on samples are not kept in %s: %s", self._folder, error)
            if written is not None:
                Path(written.name).unlink(missing_ok=True)

    def _publish(self, written: Path, path: Path) -> None:
        """Give a file its name, if the cache has room for it."""
        with (self._folder / "size").open("a+b") as total:
            fcntl.flock(total, fcntl.LOCK_EX)  # until it is closed, or this process dies
            total.seek(0)
            before = path.stat().st_size if path.exists() else 0
            size = int(total.read() or b"0") + written.stat().st_size - before
            if size > self.max_bytes:
                raise OSError(f"{self.max_bytes} bytes are full")
            total.truncate(0)
            total.write(b"%d" % size)
            total.flush()
            written.replace(path)


def _pickled(sample: Any) -> bytes:
    """By torch: Python alone writes the addresses of tensors, so that equal samples differ."""
    content = io.BytesIO()
    torch.save(sample, content)
    return content.getvalue()


def _remove(folder: str, pid: int) -> None:
    if os.getpid() == pid:  # not in a worker
        shutil.rmtree(folder, ignore_errors=True)
