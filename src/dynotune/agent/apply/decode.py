"""`decode.backend`: JPEG files are decoded by another library than the one that the program calls.

The program gets what it would have got: Pillow's own image, OpenCV's array, torchvision's tensor. A file whose meaning
another library could change (not 8 bits of grey or RGB, cut short, turned by the call) stays with the program's
decoder, and so does one that the other library cannot read. Pixels of a few files are compared.
"""

from __future__ import annotations

import functools
import importlib
import struct
from threading import get_ident

from ..core.covers import covers
from ..core.decoders import BACKENDS, array_of, pillow
from ..core.errors import by_a_signal
from ..core.shared_counts import SharedCounts
from .site import Site, answer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..core.decoders import Decode
    from ..core.hooks import AfterImport, Event
    from .site import Answer, Planned

    # Bytes and channels that a call asks for, what makes its result of such an array, and what its own decoder gives.
    Request = tuple[bytes, int, Callable[[Any], Any], Callable[[], Any]]

_NUM_COMPARED = 8
FORMAT, DEPTH, DAMAGED, FORM, FAILED = _LEFT = (
    "of another format", "of CMYK or another depth", "cut short or damaged", "asked for in another form", "not decoded",
)  # fmt: skip
_DECODED, _COMPARED, _LARGEST, _MEAN = range(len(_LEFT), len(_LEFT) + 4)
# The orientation in EXIF, in either byte order, up to its value.
_ORIENTATION = {"little": b"\x12\x01\x03\x00\x01\x00\x00\x00", "big": b"\x01\x12\x00\x03\x00\x00\x00\x01"}


class NotExact(Exception):
    """The program's own decoder has to do it; why, is one of `_LEFT`."""


class DecodeSite(Site):
    """Covers `ImageFile.load` of Pillow, `imread` and `imdecode` of OpenCV, and what torchvision decodes files with."""

    def __init__(self, planned: list[Planned], event: Event) -> None:
        super().__init__(planned, event)
        self._setting, self._name = planned[0], str(planned[0]["value"])
        self._counts = SharedCounts(_MEAN + 1)
        self._decode: Decode | None = None
        self._inside: set[int] = set()  # threads in which a call is answered

    def on_imports(self, hooks: AfterImport) -> None:
        entries: list[tuple[str, str, Any]] = [("cv2", name, _of_cv2) for name in ("imread", "imdecode")]
        entries += [("torchvision.io.image", name, _of_torchvision) for name in ("decode_jpeg", "decode_image")]
        if "pil" not in self._name:
            # Pillow opens lazily: all that needs pixels calls `load`.
            hooks.call("PIL.ImageFile", lambda module: self._cover(module.ImageFile, "load", _of_pillow))
        for module, name, ask in entries:
            if not BACKENDS[self._name][0].startswith(module):
                hooks.call(module, functools.partial(self._cover, name=name, ask=ask))

    def _cover(self, owner: Any, name: str, ask: Callable[..., Request | None]) -> None:
        original = getattr(owner, name)

        @covers(owner, name)
        def decode(*args: Any, **kwargs: Any) -> Any:
            found, thread = None, get_ident()
            if not self.failure and thread not in self._inside:
                self._inside.add(thread)
                try:
                    found = self._instead(ask(original, *args, **kwargs))
                except NotExact as reason:
                    self._counts.add(_LEFT.index(str(reason)))
                except Exception as error:
                    # The program's own decoder raises what the program expects of such a file.
                    if by_a_signal(error):
                        raise
                    self._counts.add(_LEFT.index(FAILED))
                finally:
                    self._inside.discard(thread)
            return original(*args, **kwargs) if found is None else found

    def _instead(self, request: Request | None) -> Any:
        if request is None:
            return None
        data, num_channels, result, own = request
        shape = shape_of(data)
        if shape[2] != num_channels:
            raise NotExact(FORM)
        try:
            module, backend = BACKENDS[self._name]
            self._decode = self._decode or backend(importlib.import_module(module))
        except Exception as error:
            self.failure = "%s cannot be used: %s: %s" % (self._name, type(error).__name__, error)
            raise
        pixels = self._decode(data, num_channels == 1).reshape(shape)
        counts = self._counts
        if sum(counts.each(_COMPARED)) < _NUM_COMPARED:
            difference = abs(pixels.astype("int16") - own().reshape(shape).astype("int16"))
            counts.add(_LARGEST, max(0.0, float(difference.max()) - sum(counts.each(_LARGEST))))
            counts.add(_MEAN, float(difference.mean()))
            counts.add(_COMPARED)
        found = result(pixels)
        counts.add(_DECODED)
        return found

    def readback(self) -> list[Answer]:
        *left, decoded, compared, largest, mean = (sum(self._counts.each(at)) for at in range(_MEAN + 1))
        kept = ", ".join("%d %s" % (num, reason) for num, reason in zip(left, _LEFT) if num)
        kept = "left to the program's decoder: %s" % kept if kept else ""
        witness = "JPEG files decoded in this process and those forked from it"
        if not decoded:
            detail = kept or "nothing was decoded through Pillow, OpenCV or torchvision by another library than it"
            return [answer(self._setting, None, witness, False, detail)]
        found = "%d files; in %d of them pixels differ by at most %d of 255, on average by %.3g" % (
            decoded, compared, largest, mean / max(1, compared),
        )  # fmt: skip
        return [answer(self._setting, self._name, witness, True, "; ".join(filter(None, (found, kept))))]


def _of_pillow(original: Any, image: Any) -> Request | None:
    if not image.tile:
        return None  # it is decoded already
    if type(image).__name__ != "JpegImageFile" or type(image).__module__ != "PIL.JpegImagePlugin":
        raise NotExact(FORMAT)
    if image.mode not in ("RGB", "L"):
        raise NotExact(DEPTH)
    if image.decoderconfig:  # scaled by draft()
        raise NotExact(FORM)
    at = image.fp.tell()
    image.fp.seek(0)
    data = image.fp.read()
    image.fp.seek(at)
    images = importlib.import_module("PIL.Image")

    def result(pixels: Any) -> Any:
        image.im = images.frombuffer(image.mode, image.size, pixels, "raw", image.mode, 0, 1).im
        image.tile = []
        if getattr(image, "_exclusive_fp", False) and image._close_exclusive_fp_after_loading:
            image.fp.close()
            image.fp = None
        return original(image)

    return data, 1 if image.mode == "L" else 3, result, lambda: pillow(images)(data, False)


def _of_cv2(original: Any, source: Any, flags: Any = 1, *args: Any, **kwargs: Any) -> Request:
    data = source.tobytes() if hasattr(source, "dtype") else _read(source)
    # In colour; 128 is not to turn it as EXIF says.
    if args or kwargs or flags not in (1, 129) or (flags == 1 and is_turned(data)):
        raise NotExact(FORM)
    cv2 = importlib.import_module("cv2")
    swapped = functools.partial(cv2.cvtColor, code=cv2.COLOR_BGR2RGB)  # either way
    return data, 3, swapped, lambda: swapped(original(source, flags))


def _of_torchvision(original: Any, input: Any, mode: Any = "UNCHANGED", *args: Any, **kwargs: Any) -> Request:
    is_turning, device = kwargs.pop("apply_exif_orientation", False), str(kwargs.pop("device", "cpu"))
    if args or kwargs or device != "cpu" or str(getattr(mode, "name", mode)).upper() not in ("RGB", "UNCHANGED"):
        raise NotExact(FORM)
    data = input.numpy().tobytes() if hasattr(input, "numpy") else _read(input)
    if is_turning and is_turned(data):
        raise NotExact(FORM)
    tensor = importlib.import_module("torch").from_numpy
    return data, 3, lambda pixels: tensor(pixels).permute(2, 0, 1), lambda: array_of(original(input, mode))


def _read(path: Any) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def shape_of(data: bytes) -> tuple[int, int, int]:
    """Height, width and channels of a JPEG file of 8 bits, grey or in three colours; raises NotExact for others."""
    if data[:3] != b"\xff\xd8\xff":
        raise NotExact(FORMAT)
    at = 2
    while data[-2:] == b"\xff\xd9" and data[at] == 0xFF and data[at + 1] != 0xDA:  # the scan
        if data[at + 1] in (0xC0, 0xC1, 0xC2):  # baseline, extended and progressive
            depth, height, width, num_channels = struct.unpack_from(">BHHB", data, at + 4)
            if depth != 8 or num_channels not in (1, 3):
                raise NotExact(DEPTH)
            return height, width, num_channels
        at += 1 if data[at + 1] == 0xFF else 2 + int.from_bytes(data[at + 2 : at + 4], "big")  # padding, or a segment
    raise NotExact(DAMAGED)


def is_turned(data: bytes) -> bool:
    """Whether EXIF may say that the picture is to be turned or mirrored."""
    values = ((data.partition(tag)[2][:2], order) for order, tag in _ORIENTATION.items())
    return any(value and int.from_bytes(value, order) != 1 for value, order in values)  # type: ignore[arg-type]
