"""How long installed decoders take for files: `decoder_trial.py FILE...`, run by the program's own interpreter.

Prints one object of JSON: by decoder, seconds for a file in the middle round and in the fastest one. A decoder that is
missing, or refuses one of the files, is left out.
"""

from __future__ import annotations

import io
import json
import statistics
import sys
from importlib import import_module
from time import perf_counter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

TRIAL_S, FEWEST = 0.4, 5


def _pil(image: Any, raw: bytes) -> None:
    image.open(io.BytesIO(raw)).convert("RGB").load()


def _opencv(cv2: Any, raw: bytes) -> None:
    cv2.setNumThreads(0)  # as in a worker
    cv2.imdecode(import_module("numpy").frombuffer(raw, "u1"), 1).shape  # None where it could not


def _torchvision(image: Any, raw: bytes) -> None:
    torch: Any = import_module("torch")
    image.decode_image(torch.frombuffer(bytearray(raw), dtype=torch.uint8), image.ImageReadMode.RGB)


_DECODERS: dict[str, tuple[str, Callable[[Any, bytes], Any]]] = {
    "PIL": ("PIL.Image", _pil),
    "OpenCV": ("cv2", _opencv),
    "torchvision": ("torchvision.io", _torchvision),
    "simplejpeg": ("simplejpeg", lambda simplejpeg, raw: simplejpeg.decode_jpeg(raw)),
    "turbojpeg": ("turbojpeg", lambda turbojpeg, raw: turbojpeg.TurboJPEG().decode(raw)),
}


def tried(files: list[bytes]) -> dict[str, tuple[float, float]]:
    found = {}
    for name, (module_name, decode) in _DECODERS.items():
        try:
            module, rounds = import_module(module_name), [perf_counter()]
            while len(rounds) <= FEWEST or rounds[-1] < rounds[0] + TRIAL_S:
                for raw in files:
                    decode(module, raw)
                rounds.append(perf_counter())
            took_s = [(rounds[at] - rounds[at - 1]) / len(files) for at in range(1, len(rounds))]
            found[name] = statistics.median(took_s), min(took_s)
        except Exception:  # it is not installed, or these are no files for it
            continue
    return found


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


if __name__ == "__main__":
    sys.stdout.write(json.dumps(tried([_read(path) for path in sys.argv[1:]])))
