"""Apply `decode.backend`: decode JPEG files by another library where the program uses Pillow.

The program still gets Pillow's own image. Pillow decodes a file that the other library cannot read, or might
read
differently: not 8-bit grey or RGB, truncated, or scaled during decoding. Pixels of some files are compared
between the two libraries.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import mmap
import os
import struct
from contextlib import contextmanager

from ..core.covers import covers, uncover
from ..core.decoders import BACKENDS
from ..core.errors import by_a_signal
from .loader_router import DECODE, router_of
from .site import Site, answer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from ..core.annotations import Answer, Planned
    from ..core.decoders import Decode
    from ..core.hooks import AfterImport
    from ..core.program import Program

_NUM_COMPARED, _ROWS = 8, 256
FORMAT, DEPTH, DAMAGED, SCALED, FAILED = _LEFT = (
    "of another format",
    "of CMYK or another depth",
    "cut short or damaged",
    "scaled by draft()",
    "not decoded",
)
_DECODED, _COMPARED, _LARGEST, _MEAN = range(len(_LEFT), len(_LEFT) + 4)


class SharedCounts:
    """Array of `num` counts, initially 0, that a process and its forks share; each process adds to its own
    counts."""

    def __init__(self, num: int) -> None:
        self._num, self._values = num, memoryview(mmap.mmap(-1, _ROWS * num * 8)).cast("d")

    def add(self, index: int, value: float = 1.0) -> None:
        self._values[os.getpid() % _ROWS * self._num + index] += value

    def each(self, index: int) -> list[float]:
        """Return the counts of all processes."""
        return list(self._values[index :: self._num])


class NotExact(Exception):
    """Reason, one of `_LEFT`, why Pillow has to decode a file."""


class DecodeSite(Site):
    """Cover `ImageFile.load`: Pillow opens files lazily, and all code that needs pixels calls this method.

    Within a run, it is covered in the workers of second loaders that stand in for the program's loaders.
    """

    is_switched = True
    acts_in_loaders = True
    draws_elsewhere = True

    def __init__(self, planned: list[Planned], program: Program, at_start: bool) -> None:
        super().__init__(planned, program, at_start)
        self.counts = SharedCounts(_MEAN + 1)
        self._decode: Decode | None = None
        self._router: Any = None if at_start else router_of(program)
        self._options = {DECODE: self.value}

    @property
    def num_queued(self) -> int:  # type: ignore[override]
        return int(self._router.num_queued(self._options))

    def cannot(self) -> str:
        if self.at_start:
            return ""
        if reason := self._router.cannot(self._options):
            return str(reason)
        is_here = importlib.util.find_spec("PIL") is not None
        return "" if is_here else "Pillow is not installed, so the program does not use it"

    def on(self) -> None:
        if self.at_start:
            return
        self._router.turn_on(self._options)
        # Candidates with equal options draw from the same workers, which add to the counts of the first one.
        decoder = self._router.decoders.setdefault(self._router.active, self)
        self.counts = decoder.counts

    def off(self) -> None:
        self._router.turn_off(self._options)

    def check(self, is_on: bool) -> None:
        self._router.check()

    def on_imports(self, hooks: AfterImport) -> None:
        hooks.call("PIL.ImageFile", lambda module: self._cover(module.ImageFile))

    @contextmanager
    def covering(self) -> Iterator[None]:
        """Cover the method for a while, for processes that are forked meanwhile."""
        owner = importlib.import_module("PIL.ImageFile").ImageFile
        cover = self._cover(owner)
        try:
            yield
        finally:
            uncover(owner, "load", cover)

    def _cover(self, owner: Any) -> Any:
        original = owner.load

        @covers(owner, "load")
        def load(image: Any, *args: Any, **kwargs: Any) -> Any:
            if image.tile and not self.failure:  # otherwise the image is decoded already
                try:
                    self._load(image, original)
                    self.counts.add(_DECODED)
                except NotExact as reason:
                    self.counts.add(_LEFT.index(str(reason)))
                except Exception as error:
                    # For such a file, Pillow raises the error that the program expects.
                    if by_a_signal(error):
                        raise
                    self.counts.add(_LEFT.index(FAILED))
            return original(image, *args, **kwargs)

        return load

    def _load(self, image: Any, original: Callable[..., Any]) -> None:
        if type(image).__name__ != "JpegImageFile" or type(image).__module__ != "PIL.JpegImagePlugin":
            raise NotExact(FORMAT)
        if image.decoderconfig:
            raise NotExact(SCALED)
        at = image.fp.tell()
        image.fp.seek(0)
        data = image.fp.read()
        image.fp.seek(at)
        shape = shape_of(data)
        images = importlib.import_module("PIL.Image")
        pixels = self._backend()(data, image.mode == "L").reshape(shape)
        if sum(self.counts.each(_COMPARED)) < _NUM_COMPARED:
            own = images.open(io.BytesIO(data))
            original(own)
            self._compare(pixels, importlib.import_module("numpy").asarray(own).reshape(shape))
        image.im = images.frombuffer(image.mode, image.size, pixels, "raw", image.mode, 0, 1).im
        image.tile = []
        if getattr(image, "_exclusive_fp", False) and image._close_exclusive_fp_after_loading:
            image.fp.close()
        image.fp = None

    def _backend(self) -> Decode:
        try:
            module, backend = BACKENDS[self.value]
            self._decode = self._decode or backend(importlib.import_module(module))
            return self._decode
        except Exception as error:
            self.failure = "%s cannot be used: %s: %s" % (self.value, type(error).__name__, error)
            raise

    def _compare(self, pixels: Any, own: Any) -> None:
        difference, counts = abs(pixels.astype("int16") - own.astype("int16")), self.counts
        counts.add(_LARGEST, max(0.0, float(difference.max()) - sum(counts.each(_LARGEST))))
        counts.add(_MEAN, float(difference.mean()))
        counts.add(_COMPARED)

    def read_one(self, setting: Planned) -> Answer:
        *left, decoded, compared, largest, mean = (sum(self.counts.each(at)) for at in range(_MEAN + 1))
        kept = ", ".join("%d %s" % (num, reason) for num, reason in zip(left, _LEFT) if num)
        kept = "left to Pillow: %s" % kept if kept else ""
        witness = "JPEG files decoded in this process and those forked from it"
        if not decoded:
            return answer(setting, None, witness, False, kept or "Pillow was asked to decode nothing")
        found = "%d files; in %d of them pixels differ by at most %d of 255, on average by %.3g" % (
            decoded, compared, largest, mean / max(1, compared),
        )  # fmt: skip
        return answer(setting, self.value, witness, True, "; ".join(filter(None, (found, kept))))


def shape_of(data: bytes) -> tuple[int, int, int]:
    """Return height, width and channels of an 8-bit grey or three-colour JPEG file; raise NotExact for other
    files."""
    if data[:3] != b"\xff\xd8\xff":
        raise NotExact(FORMAT)
    at = 2
    while data[-2:] == b"\xff\xd9" and data[at] == 0xFF and data[at + 1] != 0xDA:  # start of scan
        if data[at + 1] in (0xC0, 0xC1, 0xC2):  # baseline, extended and progressive frames
            depth, height, width, num_channels = struct.unpack_from(">BHHB", data, at + 4)
            if depth != 8 or num_channels not in (1, 3):
                raise NotExact(DEPTH)
            return height, width, num_channels
        at += (
            1 if data[at + 1] == 0xFF else 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        )  # padding or a segment
    raise NotExact(DAMAGED)
