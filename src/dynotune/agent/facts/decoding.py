"""Time known decoders of images and sound while a batch is made."""

from __future__ import annotations

import functools
import os
from time import perf_counter

from ..core.covers import cover_outermost
from ..core.errors import guarded
from .batch_costs import Counts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ..core.annotations import Log
    from ..core.hooks import AfterImport

_MOST_FILES = 16
# Module, then its functions that decode, or that resize and convert, which data of the final size need not.
_DECODERS = {
    "PIL.ImageFile": ("ImageFile.load",),
    "PIL.Image": ("Image.convert", "Image.resize", "Image.thumbnail"),
    "cv2": ("imread", "imdecode", "resize", "cvtColor"),
    "torchvision.io": ("decode_image", "decode_jpeg", "decode_png", "decode_webp", "read_image"),
    "turbojpeg": ("TurboJPEG.decode",),
    "simplejpeg": ("decode_jpeg",),
    "imageio.v2": ("imread",),
    "imageio.v3": ("imread",),
    "skimage.io": ("imread",),
    "torchaudio": ("load",),
    "soundfile": ("read",),
    "librosa": ("load",),
}


class Decoding:
    """Add the times of decoders to the counts of the batch that a thread makes.

    `making`: by thread, the counts of the batch that the thread is making.
    """

    def __init__(self, making: dict[int, Counts], log: Log) -> None:
        self._making = making
        self._log = log
        self._busy: set[int] = set()

    def install(self, hooks: AfterImport) -> None:
        for module, names in _DECODERS.items():
            hooks.call(module, functools.partial(self._cover_module, module, names))

    def _cover_module(self, module_name: str, names: tuple[str, ...], module: Any) -> None:
        for name in names:
            owner_name, _, attribute = name.rpartition(".")
            owner = getattr(module, owner_name, None) if owner_name else module
            if callable(getattr(owner, attribute, None)):
                self._cover(owner, attribute, "%s.%s" % (module_name, name))

    def _cover(self, owner: Any, attribute: str, name: str) -> None:
        def decoded(counts: Counts, begin_s: float, args: Sequence[Any]) -> None:
            counts.decode_s += perf_counter() - begin_s
            counts.decoders.add(name)
            if args and len(counts.decoded) < _MOST_FILES:
                guarded(self._log, "file decoded", note, counts, getattr(args[0], "filename", args[0]))

        def note(counts: Counts, path: object) -> None:
            if isinstance(path, (str, os.PathLike)):
                counts.decoded.append(os.path.abspath(os.fsdecode(path)))

        cover_outermost(owner, attribute, self._busy, self._making.get, decoded)
