"""Photograph-like JPEG files for the demo: smooth light, textures and grain, to compress like real ones."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dynotune.schema.errors import CannotRunHere

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

__all__ = ["NUM_PHOTOGRAPHS", "photographs"]

NUM_PHOTOGRAPHS = 600
# A class is a mixture: how strong the texture is, how much of it is fine, and a cast of colour.
CLASSES = {
    "bark": (0.55, 0.62, (12, 0, -14)),
    "fog": (0.20, 0.40, (0, 2, 6)),
    "leaves": (0.60, 0.72, (-10, 16, -12)),
    "sand": (0.35, 0.55, (18, 8, -12)),
    "sky": (0.28, 0.45, (-14, 0, 22)),
    "stone": (0.50, 0.66, (0, 0, 0)),
}


def photographs(cache: Path, *, progress: Callable[[int], None] = lambda done: None) -> Path:
    """The folder with `NUM_PHOTOGRAPHS` JPEG files, one subfolder a class; written at the first call.

    The folder appears whole or not at all, also when two processes write it at once.

    Args:
        cache: where it is kept.
        progress: called with the number of files written so far.

    Raises:
        CannotRunHere: Pillow is not installed, or the files cannot be written.
    """
    folder = cache / f"photographs-{NUM_PHOTOGRAPHS}"
    if folder.is_dir():
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=".photographs-", dir=cache))
        try:
            _write_all(partial, progress)
            partial.rename(folder)
        except OSError:
            # Somebody else's finished folder is as good as ours.
            if not folder.is_dir():
                raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise CannotRunHere(
            f"Cannot write the demo's photographs in {cache}: {error.strerror or error}.",
            hint="They need about 50 MB. Free some space, or name another folder in XDG_CACHE_HOME.",
        ) from error
    return folder


def _write_all(folder: Path, progress: Callable[[int], None]) -> None:
    import numpy as np

    rng = np.random.default_rng(20)
    names = list(CLASSES)
    for name in names:
        (folder / name).mkdir()
    for number in range(NUM_PHOTOGRAPHS):
        name = names[number % len(names)]
        photograph(name, rng).save(folder / name / f"{number:04d}.jpg", quality=88)
        progress(number + 1)


def photograph(name: str, rng: np.random.Generator) -> Image.Image:
    """One picture of class `name`, about 640 × 480, upright in one case of four.

    Raises:
        CannotRunHere: Pillow is not installed.
    """
    import numpy as np

    try:
        from PIL import Image
    except ImportError as error:
        raise CannotRunHere(
            "The demo writes JPEG files, and Pillow is not installed.",
            hint="pip install 'dynotune[demo]'",
        ) from error

    strength, fineness, cast = CLASSES[name]
    width, height = int(rng.integers(576, 705)), int(rng.integers(432, 529))
    if rng.random() < 0.25:
        width, height = height, width

    def layer(cells: int, amplitude: float) -> np.ndarray:
        """Random light that varies over 1/`cells` of the width."""
        grid = rng.standard_normal((max(2, cells * height // width), cells), dtype=np.float32) * amplitude
        smooth = Image.fromarray(grid).resize((width, height), Image.Resampling.BICUBIC)
        return np.asarray(smooth)

    light = 118 + 46 * rng.standard_normal() * 0.4 + layer(2, 42.0)
    amplitude = 44.0 * strength
    for cells in (6, 18, 54, 160, 320):
        light = light + layer(cells, amplitude)
        amplitude *= fineness
    pixels = np.empty((height, width, 3), dtype=np.float32)
    for channel in range(3):
        pixels[..., channel] = light + cast[channel] + layer(4, 9.0)
    pixels += rng.standard_normal((height, width, 1), dtype=np.float32) * 2.5
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
