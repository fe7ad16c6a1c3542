"""Provide the image decoders of `decode.backend`; as a program, `decoders.py FILE...` measures their times.

The user's own interpreter runs the program, which prints one JSON object: for each decoder, seconds per file
in the middle round and in the fastest round. A decoder that is missing, or refuses one of the files, is left
out.
"""

from __future__ import annotations

import io
import json
import sys
from importlib import import_module
from time import perf_counter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    # Maps bytes, and whether they are grey, to an array of RGB or grey.
    Decode = Callable[[bytes, bool], Any]

TRIAL_S, FEWEST = 0.4, 5


def _pillow(image: Any) -> Decode:
    """Return Pillow's own image, which a program accepts."""
    return lambda data, is_grey: image.open(io.BytesIO(data)).load()


def _opencv(cv2: Any) -> Decode:
    frombuffer = import_module("numpy").frombuffer

    def decode(data: bytes, is_grey: bool) -> Any:
        found = cv2.imdecode(frombuffer(data, "uint8"), 128 if is_grey else 129)  # not rotated by EXIF
        return found if is_grey else cv2.cvtColor(found, cv2.COLOR_BGR2RGB)

    return decode


def _torchvision(image: Any) -> Decode:
    torch = import_module("torch")

    def decode(data: bytes, is_grey: bool) -> Any:
        pixels = image.decode_image(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        return pixels.permute(1, 2, 0).contiguous().numpy()

    return decode


def _simplejpeg(module: Any) -> Decode:
    return lambda data, is_grey: module.decode_jpeg(data, "GRAY" if is_grey else "RGB")


BACKENDS: dict[str, tuple[str, Callable[[Any], Decode]]] = {
    "opencv": ("cv2", _opencv),
    "torchvision": ("torchvision.io.image", _torchvision),
    "simplejpeg": ("simplejpeg", _simplejpeg),
}


def tried(files: list[bytes]) -> dict[str, tuple[float, float]]:
    found = {}
    for name, (module_name, backend) in {"pil": ("PIL.Image", _pillow), **BACKENDS}.items():
        try:
            module = import_module(module_name)
            getattr(module, "setNumThreads", int)(0)  # one OpenCV thread, as in a worker
            decode, rounds = backend(module), [perf_counter()]
            while len(rounds) <= FEWEST or rounds[-1] < rounds[0] + TRIAL_S:
                for data in files:
                    decode(data, False)
                rounds.append(perf_counter())
            took_s = [(rounds[at] - rounds[at - 1]) / len(files) for at in range(1, len(rounds))]
            found[name] = (
                import_module("statistics").median(took_s),
                min(took_s),
            )  # late, because this imports much
        except Exception:  # it is not installed, or cannot decode these files
            continue
    return found


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


if __name__ == "__main__":
    del sys.path[0]  # here our modules would be taken for others
    sys.stdout.write(json.dumps(tried([_read(path) for path in sys.argv[1:]])))
