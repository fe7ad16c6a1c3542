"""Decode pictures on the device that needs them."""

import io
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from dynotune.runtime.streams import resolved

__all__ = ["Decoded", "decode_on_device"]


@dataclass(frozen=True, slots=True)
class Decoded:
    """`images`: uint8 [3, height, width] on the device, in the order of the files; None for a damaged file.

    `errors` maps the index of each damaged file to the reason.
    """

    images: list[torch.Tensor | None]
    errors: dict[int, Exception]


def decode_on_device(
    sources: Sequence[str | os.PathLike[str] | bytes], device: torch.device | str
) -> Decoded:
    """Decode pictures to RGB: on a CUDA device JPEG files by nvJPEG, through torchvision; all others by
    Pillow.

    Let the DataLoader's workers read the bytes, and decode a batch in the training process, for instance in a
    `Prefetcher`'s `transform`. EXIF orientation is ignored.

    Args:
        sources: paths of picture files, or the contents of the files as bytes.

    Raises:
        DeviceError: if the device is not usable here.
    """
    device = resolved(device)
    with ThreadPoolExecutor(4) as pool:
        files = list(pool.map(_content, sources))
        # nvJPEG fills the missing part of a truncated file.
        whole = [at for at, data in enumerate(files) if isinstance(data, bytes) and data[-2:] == b"\xff\xd9"]
        images = _on_gpu(files, whole, device) if device.type == "cuda" else {}
        rest = [at for at in range(len(files)) if at not in images]
        found = dict(zip(rest, pool.map(_by_pillow, (files[at] for at in rest)), strict=True))
    images |= {at: image.to(device) for at, image in found.items() if isinstance(image, torch.Tensor)}
    errors = {at: error for at, error in found.items() if isinstance(error, Exception)}
    return Decoded([images.get(at) for at in range(len(files))], errors)


def _content(source: str | os.PathLike[str] | bytes) -> bytes | Exception:
    try:
        return source if isinstance(source, bytes) else Path(source).read_bytes()
    except (OSError, ValueError) as error:
        return error


def _on_gpu(
    files: list[bytes | Exception], places: list[int], device: torch.device
) -> dict[int, torch.Tensor]:
    """Decode all pictures in one call; if the call fails, decode each half, until the files that fail are
    found."""
    try:
        from torchvision.io import ImageReadMode, decode_jpeg

        encoded = [torch.frombuffer(bytearray(files[at]), dtype=torch.uint8) for at in places]  # type: ignore[arg-type]
        return dict(
            zip(places, decode_jpeg(encoded, ImageReadMode.RGB, device) if places else (), strict=True)
        )
    except (
        ImportError,
        RuntimeError,
    ):  # not installed, built for another torch, or a file that it cannot decode
        half = len(places) // 2
        return _on_gpu(files, places[:half], device) | _on_gpu(files, places[half:], device) if half else {}


def _by_pillow(data: bytes | Exception) -> torch.Tensor | Exception:
    from PIL import Image

    try:
        if isinstance(data, Exception):
            return data
        image = Image.open(io.BytesIO(data))
        if image.mode[0] in "IF":
            raise ValueError(f"pixels of mode {image.mode} do not fit into 8 bits")
        pixels = torch.frombuffer(bytearray(image.convert("RGB").tobytes()), dtype=torch.uint8)
        return pixels.reshape(image.height, image.width, 3).permute(2, 0, 1).contiguous()
    except Exception as error:
        return error
