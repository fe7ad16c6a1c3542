"""How long the decoders that are installed take for some files: run by the program's own interpreter, beside itself.

`decoder_trial.py FILE...` prints one object of JSON: by decoder, seconds for a file in the middle round and in the
fastest one. A decoder that is missing or refuses one of the files is left out.
"""

from __future__ import annotations

import importlib
import io
import json
import statistics
import sys
from time import perf_counter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

TRIAL_S, FEWEST = 0.4, 5


def _decoders() -> dict[str, tuple[str, Callable[[Any, bytes], Any]]]:
    def opencv(cv2: Any, raw: bytes) -> Any:
        found = cv2.imdecode(importlib.import_module("numpy").frombuffer(raw, "u1"), 1)
        return found.shape  # there is none where it could not decode

    def torchvision(image: Any, raw: bytes) -> Any:
        torch: Any = importlib.import_module("torch")
        return image.decode_image(torch.frombuffer(bytearray(raw), dtype=torch.uint8), image.ImageReadMode.RGB)

    return {
        "PIL": ("PIL.Image", lambda image, raw: image.open(io.BytesIO(raw)).convert("RGB").load()),
        "OpenCV": ("cv2", opencv),
        "torchvision": ("torchvision.io", torchvision),
        "simplejpeg": ("simplejpeg", lambda simplejpeg, raw: simplejpeg.decode_jpeg(raw)),
        "turbojpeg": ("turbojpeg", lambda turbojpeg, raw: turbojpeg.TurboJPEG().decode(raw)),
    }


def tried(files: list[bytes]) -> dict[str, tuple[float, float]]:
    found = {}
    for name, (module_name, decode) in _decoders().items():
        try:
            module: Any = importlib.import_module(module_name)
            rounds: list[float] = []
            if name == "OpenCV":
                module.setNumThreads(0)  # as in a worker
            end_s = perf_counter() + TRIAL_S
            while len(rounds) < FEWEST or perf_counter() < end_s:
                begin_s = perf_counter()
                for raw in files:
                    decode(module, raw)
                rounds.append((perf_counter() - begin_s) / len(files))
            found[name] = statistics.median(rounds), min(rounds)
        except Exception:  # it is not installed, or these are no files for it
            continue
    return found


if __name__ == "__main__":
    raws = []
    for path in sys.argv[1:]:
        with open(path, "rb") as file:
            raws.append(file.read())
    sys.stdout.write(json.dumps(tried(raws)))
