"""Pictures that nvJPEG decodes: those of the CPU but for rounding, with bad files told in their places."""

import io

import numpy as np
import pytest

pytestmark = pytest.mark.gpu


def test_pictures_on_a_gpu_are_those_of_the_cpu_but_for_rounding():
    pytest.importorskip("torchvision")
    image_module = pytest.importorskip("PIL.Image")
    from dynotune.runtime.data import decode_on_device

    y, x = np.mgrid[0:60, 0:80]

    def encoded(colour, format="JPEG", mode="RGB"):
        file = io.BytesIO()
        pixels = np.stack([x * 3, y * 4, x * 0 + colour], 2).astype("uint8")
        image_module.fromarray(pixels).convert(mode).save(file, format)
        return file.getvalue()

    sources = [encoded(colour) for colour in range(0, 256, 16)]
    sources[3:6] = [sources[3][:-80], encoded(9, "PNG"), encoded(9, mode="CMYK")]
    here, there = decode_on_device(sources, "cpu"), decode_on_device(sources, "cuda")
    assert list(here.errors) == list(there.errors) == [3]
    for one, other in zip(here.images, there.images, strict=True):
        if one is not None:
            assert other.is_cuda
            assert (one.int() - other.cpu().int()).abs().float().mean() < 4
