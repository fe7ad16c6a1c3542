"""Decoding on the device: the order kept, and a bad file reported in its place."""

import io

import numpy as np
import pytest
import torch

from dynotune.runtime import DeviceError
from dynotune.runtime.data import decode_on_device

Image = pytest.importorskip("PIL.Image")


def encoded(format="JPEG", mode="RGB", size=(40, 30), colour=0, **how):
    y, x = np.mgrid[0 : size[1], 0 : size[0]]
    file = io.BytesIO()
    Image.fromarray(np.stack([x * 4, y * 4, x * 0 + colour], 2).astype("uint8")).convert(mode).save(
        file, format, **how
    )
    return file.getvalue()


def sixteen_bits():
    file = io.BytesIO()
    Image.fromarray(np.arange(1200, dtype="uint16").reshape(30, 40)).save(file, "PNG")
    return file.getvalue()


def test_pictures_come_in_order_as_rgb_whatever_they_are(tmp_path):
    path = tmp_path / "ü.jpg"
    path.write_bytes(encoded(size=(8, 16)))
    odd = tmp_path / b"\xff.jpg".decode("utf-8", "surrogateescape")
    odd.write_bytes(encoded())
    turned = Image.Exif()
    turned[0x0112] = 6
    sources = [
        encoded(),
        path,
        str(odd),
        encoded("PNG", "P"),
        encoded("JPEG", "CMYK"),
        encoded(mode="L"),
        encoded(exif=turned),
    ]
    decoded = decode_on_device(sources, "cpu")
    assert decoded.errors == {}
    assert [list(image.shape) for image in decoded.images] == [[3, 30, 40], [3, 16, 8]] + [[3, 30, 40]] * 5
    assert {(image.dtype, image.device.type, image.is_contiguous()) for image in decoded.images} == {
        (torch.uint8, "cpu", True)
    }
    assert decoded.images[0][0].float().mean() > 60


def test_bad_files_are_told_in_their_places_and_the_rest_is_there(tmp_path):
    sources = [
        b"",
        encoded(),
        encoded()[:-80],
        tmp_path / "missing.jpg",
        encoded("GIF"),
        b"no picture",
        sixteen_bits(),
        "a\0b",
    ]
    decoded = decode_on_device(sources, "cpu")
    assert [at for at, image in enumerate(decoded.images) if image is not None] == [1, 4]
    assert sorted(decoded.errors) == [0, 2, 3, 5, 6, 7]
    assert "truncated" in str(decoded.errors[2])
    assert "8 bits" in str(decoded.errors[6])


def test_no_picture_gives_none_and_a_missing_device_is_said():
    assert decode_on_device([], "cpu").images == []
    if not torch.cuda.is_available():
        with pytest.raises(DeviceError):
            decode_on_device([encoded()], "cuda")
