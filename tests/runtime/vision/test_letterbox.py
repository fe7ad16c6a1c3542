"""Letterboxing against the definition of OpenCV's linear resize, and against OpenCV where it is installed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dynotune.runtime.errors import InputError
from dynotune.runtime.vision.letterbox import GREY, Letterbox, place, rows_read

SIZES = [(48, 64), (1080, 1920), (37, 91), (91, 37), (640, 640), (3, 200), (1, 1), (333, 517)]


def opencv_resize(frame, height, width):
    """OpenCV's INTER_LINEAR of uint8: half-pixel centres, weights in 1/2048, rounded once at the end."""

    def taps(size, new):
        at = (np.arange(new) + 0.5) * (size / new) - 0.5
        at = at.clip(0, size - 1)
        first = np.floor(at).astype(int)
        weight = np.rint((at - first) * 2048).astype(np.int64)
        return first, np.minimum(first + 1, size - 1), weight

    up, down, wy = taps(frame.shape[0], height)
    left, right, wx = taps(frame.shape[1], width)
    wide = frame.astype(np.int64)
    wx, wy = wx[None, :, None], wy[:, None, None]
    rows = wide[:, left] * (2048 - wx) + wide[:, right] * wx
    mixed = rows[up] * (2048 - wy) + rows[down] * wy
    return ((mixed + (1 << 21)) >> 22).astype(np.uint8)


def letterboxed(frame, *, imgsz=(160, 160), rect=True, dtype=torch.float32, swap=True):
    at = place(frame.shape[:2], imgsz, rect=rect)
    out = torch.full((1, 3, at.height, at.width), float("nan"), dtype=dtype)
    Letterbox(at, torch.device("cpu"), swap_channels=swap)(torch.from_numpy(frame)[None], out)
    return at, out[0].float().permute(1, 2, 0).numpy() * 255


def differs(frame, resized, at, found):
    want = np.full((at.height, at.width, 3), GREY, np.uint8)
    want[at.top : at.top + at.resized_height, at.left : at.left + at.resized_width] = resized
    return np.abs(found - want[..., ::-1])


@pytest.mark.parametrize("rect", [True, False])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_letterboxed_frame_is_what_opencv_makes_of_it(size, rect):
    frame = np.random.default_rng(1).integers(0, 256, (*size, 3), dtype=np.uint8)
    at, found = letterboxed(frame, rect=rect)
    off = differs(frame, opencv_resize(frame, at.resized_height, at.resized_width), at, found)
    assert off.max() <= 1.01
    assert off.mean() <= 0.3


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_letterboxed_frame_is_what_the_installed_opencv_makes_of_it(size):
    cv2 = pytest.importorskip("cv2")
    frame = np.random.default_rng(2).integers(0, 256, (*size, 3), dtype=np.uint8)
    at, found = letterboxed(frame)
    resized = cv2.resize(frame, (at.resized_width, at.resized_height), interpolation=cv2.INTER_LINEAR)
    off = differs(frame, resized, at, found)
    assert off.max() <= 1.01
    assert off.mean() <= 0.3


def test_half_precision_and_rgb_frames_and_another_layout_give_the_same_picture():
    frame = np.random.default_rng(3).integers(0, 256, (50, 70, 3), dtype=np.uint8)
    at, found = letterboxed(frame)
    _, half = letterboxed(frame, dtype=torch.float16)
    _, rgb = letterboxed(np.ascontiguousarray(frame[..., ::-1]), swap=False)
    assert np.abs(found - half).max() < 0.13
    assert np.array_equal(found, rgb)
    out = torch.empty(1, 3, at.height, at.width).to(memory_format=torch.channels_last)
    Letterbox(at, torch.device("cpu"), swap_channels=True)(torch.from_numpy(frame)[None], out)
    assert np.array_equal(out[0].permute(1, 2, 0).numpy() * 255, found)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 20), st.integers(1, 20), st.booleans())
def test_a_frame_lies_inside_its_input_and_its_corners_come_back(height, width, rows, columns, rect):
    imgsz = (32 * rows, 32 * columns)
    at = place((height, width), imgsz, rect=rect)
    assert at.height % 32 == at.width % 32 == 0
    assert at.height <= imgsz[0] and at.width <= imgsz[1]
    assert at.top >= 0 and at.top + at.resized_height <= at.height
    assert at.left >= 0 and at.left + at.resized_width <= at.width
    assert abs(at.resized_width - width * at.gain) <= 0.5 or at.resized_width == 1
    assert abs(at.resized_height - height * at.gain) <= 0.5 or at.resized_height == 1


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 500), st.integers(1, 60), st.sampled_from([32, 64, 160]))
def test_of_a_frame_the_rows_that_are_read_make_the_picture_of_all(height, width, imgsz):
    at = place((height, width), (imgsz, imgsz))
    rows = rows_read(at)
    assume(rows is not None)
    frame = torch.from_numpy(np.random.default_rng(4).integers(0, 256, (1, height, width, 3), dtype=np.uint8))
    whole = Letterbox(at, torch.device("cpu"), swap_channels=True)
    few = Letterbox(at, torch.device("cpu"), swap_channels=True, rows=rows)
    assert torch.equal(few.picture(frame[:, rows]), whole.picture(frame))


@settings(max_examples=30, deadline=None)
@given(st.integers(50, 300), st.sampled_from([32, 64]))
def test_rows_that_are_not_read_show_nowhere_and_each_other_does(height, imgsz):
    at = place((height, 2), (imgsz, imgsz))
    rows = rows_read(at)
    assume(rows is not None)
    # Of each frame another row is lit.
    lit = torch.eye(height, dtype=torch.uint8)[:, :, None, None].expand(-1, -1, 2, 3).contiguous() * 255
    shows = Letterbox(at, torch.device("cpu"), swap_channels=True).picture(lit).flatten(1).amax(1) > 0
    assert not shows[[row for row in range(height) if row not in set(rows.tolist())]].any()
    centres = ((np.arange(at.resized_height) + 0.5) * (height / at.resized_height) - 0.5).clip(0, height - 1)
    weights = 1 - np.abs(centres[:, None] - rows.numpy())
    assert shows[rows[weights.max(0) > 1 / 255]].all()  # rounding hides a smaller weight


@pytest.mark.parametrize(
    ("size", "imgsz", "num"),
    [((1080, 1920), 640, 360), ((2160, 3840), 640, 720), ((1440, 2560), 640, 720), ((720, 1280), 640, None)],
    ids=str,
)
def test_of_a_large_frame_few_rows_are_read(size, imgsz, num):
    rows = rows_read(place(size, (imgsz, imgsz)))
    assert (None if rows is None else len(rows)) == num


def test_rows_are_on_the_host_whatever_torchs_default_device():
    with torch.device("meta"):
        rows = rows_read(place((1082, 1922), (640, 640)))
    assert rows.device.type == "cpu"


def test_frames_with_gaps_make_the_same_picture_and_others_than_the_letterbox_is_for_are_refused():
    at = place((288, 384), (64, 64))
    rows = rows_read(at)
    whole = Letterbox(at, torch.device("cpu"), swap_channels=True)
    few = Letterbox(at, torch.device("cpu"), swap_channels=True, rows=rows)
    many = torch.randint(0, 256, (4, 288, 384, 3), dtype=torch.uint8)
    assert torch.equal(whole.picture(many[::2]), whole.picture(many[::2].clone()))
    for box, frames in (
        (few, many),
        (whole, many[:, rows]),
        (whole, many.transpose(1, 2)),
        (whole, many.float()),
    ):
        with pytest.raises(InputError, match="were given to a letterbox for"):
            box.picture(frames)
