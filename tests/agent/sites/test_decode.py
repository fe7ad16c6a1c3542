"""`decode.backend`: another decoder behind Pillow's own images, and Pillow where meaning could change."""

import pytest

from dynotune.schema.events import BatchesFetched

PICTURES = """
import io, time
import numpy as np
from PIL import Image
y, x = np.mgrid[0:96, 0:128]
smooth = np.stack([x * 2, y * 2, (x + y) % 256], 2).astype("uint8")

def jpeg(pixels=smooth, mode="RGB", **how):
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, "JPEG", quality=90, **how)
    return file.getvalue()

def opened(data):
    return Image.open(io.BytesIO(data))
"""


def test_pillow_gives_its_own_image_with_pixels_of_another_decoder(child):
    pytest.importorskip("cv2")
    done = child(
        PICTURES
        + """
open("a.jpg", "wb").write(jpeg(exif=Image.Exif(), comment=b"hello"))
image = Image.open("a.jpg")
out["lazy"] = bool(image.tile)
out["class"], out["size"], out["mode"] = type(image).__name__, image.size, image.mode
rgb = image.convert("RGB")
out["comment"] = image.info["comment"].decode()
out["closed"] = image.fp is None or image.fp.closed
out["far"] = int(np.abs(np.asarray(rgb).astype(int) - smooth).max())
grey = opened(jpeg(mode="L"))
out["grey"] = [grey.mode, np.asarray(grey).shape]
grey.putpixel((0, 0), 7)
out["written"] = grey.getpixel((0, 0))
""",
        "decode.backend=opencv",
    )
    assert done.out.pop("far") < 32
    assert done.out == {
        "lazy": True,
        "class": "JpegImageFile",
        "size": [128, 96],
        "mode": "RGB",
        "comment": "hello",
        "closed": True,
        "grey": ["L", [96, 128]],
        "written": 7,
    }
    answer = done.readback["decode.backend"]
    assert answer["ok"] is True
    assert answer["detail"].startswith("2 files; in 2 of them pixels differ by at most ")
    assert done.errors() == []


LEFT = """
def outcome(load):
    try:
        return np.asarray(load()).tolist()
    except Exception as error:
        return type(error).__name__

files = {
    "cmyk": jpeg(mode="CMYK"),
    "cut short": jpeg()[:-200],
    "damaged": jpeg()[:40] + bytes(200) + jpeg()[240:],
    "empty": b"",
}
for name, picture in {"png": Image.fromarray(smooth), "palette": Image.fromarray(smooth).convert("P")}.items():
    file = io.BytesIO()
    picture.save(file, "PNG")
    files[name] = file.getvalue()
file = io.BytesIO()
Image.fromarray(np.arange(96 * 128, dtype="uint16").reshape(96, 128)).save(file, "PNG")
files["16 bit"] = file.getvalue()
file = io.BytesIO()
Image.new("P", (8, 8)).save(file, "GIF", save_all=True, append_images=[Image.new("P", (8, 8), 1)])
files["animated"] = file.getvalue()
out["found"] = {name: outcome(lambda: opened(data)) for name, data in files.items()}
drafted = opened(jpeg())
drafted.draft("RGB", (32, 24))
out["drafted"] = drafted.convert("RGB").size
thumbnail = opened(jpeg())
thumbnail.thumbnail((16, 16))
out["thumbnail"] = np.asarray(thumbnail).tolist()
"""  # noqa: E501


def test_decode_backend_leaves_pictures_to_pillow_when_another_decoder_might_change_them(child):
    pytest.importorskip("simplejpeg")
    as_it_is, done = child(PICTURES + LEFT), child(PICTURES + LEFT, "decode.backend=simplejpeg")
    assert done.out == as_it_is.out
    assert done.out["found"]["cut short"] == "OSError"
    assert "CMYK" in done.readback["decode.backend"]["detail"]
    assert done.errors() == []


@pytest.mark.parametrize(("backend", "module"), [("opencv", "cv2"), ("simplejpeg", "simplejpeg")])
def test_a_picture_that_exif_says_to_turn_comes_as_pillow_gives_it(child, backend, module):
    pytest.importorskip(module)
    program = (
        PICTURES
        + """
for turn in (3, 6, 8):
    exif = Image.Exif()
    exif[0x0112] = turn
    image = opened(jpeg(exif=exif))
    far = np.abs(np.asarray(image.convert("RGB")).astype(int) - smooth).max()
    out[str(turn)] = [image.size, image.getexif()[0x0112], bool(far < 32)]
"""
    )
    done = child(program, f"decode.backend={backend}")
    assert done.out == {str(turn): [[128, 96], turn, True] for turn in (3, 6, 8)}
    assert done.readback["decode.backend"]["detail"].startswith("3 files; ")


@pytest.mark.long
def test_files_whose_names_are_no_utf8_are_decoded_and_noted(script, run_under_agent):
    program = (
        PICTURES
        + """
import os
from torch.utils.data import DataLoader
name = b"\\xff.jpg"
open(name, "wb").write(jpeg())

class Named(os.PathLike):
    def __fspath__(self):
        return name

until = time.perf_counter() + 1.2  # what is seen is written twice a second
names = [name.decode("utf-8", "surrogateescape"), Named()] * 10 ** 6
for sizes in DataLoader(names, 4, collate_fn=lambda files: [Image.open(file).convert("RGB").size for file in files]):
    if time.perf_counter() > until:
        break
print(sizes[0])
"""  # noqa: E501
    )
    ran = run_under_agent([script(program)], observe=True)
    assert (ran.returncode, ran.stdout) == (0, "(128, 96)\n"), ran.stderr
    told = next(event for record in ran.records if (event := record.last(BatchesFetched)))
    assert {path.rpartition("/")[2] for path in told.decoded} == {"\udcff.jpg"}


def test_loading_processes_decode_with_it_and_what_they_did_is_told(child):
    pytest.importorskip("simplejpeg")
    done = child(
        PICTURES
        + """
import torch
from torch.utils.data import DataLoader, Dataset

class Files(Dataset):
    def __len__(self):
        return 12
    def __getitem__(self, index):
        return torch.from_numpy(np.array(opened(jpeg(smooth // (index + 1))).convert("RGB")))

out["shapes"] = [list(batch.shape) for batch in DataLoader(Files(), 4, num_workers=2, multiprocessing_context="fork")]
""",  # noqa: E501
        "decode.backend=simplejpeg",
    )
    assert done.out["shapes"] == [[4, 96, 128, 3]] * 3
    assert done.readback["decode.backend"]["detail"].startswith("12 files; ")


@pytest.mark.long
def test_decoding_is_timed_when_another_decoder_does_it(script, run_under_agent):
    pytest.importorskip("simplejpeg")
    program = (
        PICTURES
        + """
from torch.utils.data import DataLoader
until = time.perf_counter() + 1.2  # what is seen is written twice a second
for shapes in DataLoader([jpeg()] * 10 ** 6, 4, collate_fn=lambda files: [opened(data).load() for data in files]):
    if time.perf_counter() > until:
        break
print(len(shapes))
"""  # noqa: E501
    )
    site = {"type": "library", "action": "decode"}
    plan = [{"knob": "decode.backend", "value": "simplejpeg", "site": site, "keep": False}]
    ran = run_under_agent([script(program)], settings=plan, observe=True)
    assert (ran.returncode, ran.stdout) == (0, "4\n"), ran.stderr
    (answer,) = [answer for process in ran.processes for answer in process.readback]
    assert answer.ok, answer
    told = next(event for record in ran.records if (event := record.last(BatchesFetched)))
    assert told.decoders == ["PIL.ImageFile.ImageFile.load"]


def test_threads_of_one_image_do_not_stand_in_each_others_way(child):
    pytest.importorskip("simplejpeg")
    done = child(
        PICTURES
        + """
from concurrent.futures import ThreadPoolExecutor
files = [jpeg(smooth // n) for n in range(1, 9)] * 8
with ThreadPoolExecutor(4) as pool:
    found = list(pool.map(lambda data: np.asarray(opened(data)).mean(), files))
out["same"] = found == [np.asarray(opened(data)).mean() for data in files]
""",
        "decode.backend=simplejpeg",
    )
    assert done.out["same"]
    assert done.readback["decode.backend"]["detail"].startswith("128 files; ")


def test_a_library_that_cannot_be_used_leaves_the_program_as_it_is_and_is_told(child):
    program = (
        "import sys\nsys.modules['simplejpeg'] = None\n"
        + PICTURES
        + "out['far'] = opened(jpeg()).convert('RGB').size"
    )
    done = child(program, "decode.backend=simplejpeg")
    assert done.out["far"] == [128, 96]
    assert done.readback["decode.backend"]["ok"] is False
    assert "simplejpeg cannot be used" in done.readback["decode.backend"]["detail"]


def test_a_program_that_decodes_nothing_is_told_so(child):
    done = child("", "decode.backend=opencv")
    assert done.readback["decode.backend"]["ok"] is False
    assert "asked to decode nothing" in done.readback["decode.backend"]["detail"]
