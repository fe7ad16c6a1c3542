"""Kernels of our own, run by Triton's interpreter, and what happens without them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dynotune.runtime.vision.kernels import kernels_of

INTERPRETED = """
import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from dynotune.runtime.vision import letterbox, letterbox_kernels, nms, nms_kernels
from tests.runtime.kernel_cases import outputs

@settings(max_examples=25, deadline=None, database=None)
@given(outputs())
def same(case):
    process, raw, places = case
    if raw.shape[1 if process.end_to_end else 2] > 300:
        return  # the interpreter takes seconds for it
    nms.kernels_of = lambda *_: None
    want = process(raw, places)
    nms.kernels_of = lambda *_: nms_kernels
    found = process(raw, places)
    assert all(torch.equal(one, other) for one, other in zip(found, want, strict=True)), (process.__dict__, raw)

same()

process = nms.PostProcess(
    end_to_end=False, conf=np.float32(0.25), iou=np.float32(0.5), max_det=np.int64(200_000), top_k=np.int64(64)
)
raw, places = torch.rand(1, 6, 20), torch.tensor([[0.0, 0, 1, 40, 40]])
for process.max_det in (process.max_det, 5):
    nms.kernels_of = lambda *_: None
    want = process(raw, places)
    nms.kernels_of = lambda *_: nms_kernels
    assert all(torch.equal(one, other) for one, other in zip(process(raw, places), want, strict=True))
assert nms_kernels.works(torch.device("cpu"))

@settings(max_examples=15, deadline=None, database=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 2), st.booleans())
def same_picture(height, width, num, swap):
    frames = torch.randint(0, 256, (num, height, width, 3), dtype=torch.uint8)
    box = letterbox.Letterbox(letterbox.place((height, width), (32, 32)), torch.device("cpu"), swap_channels=swap)
    letterbox.kernels_of = lambda *_: None
    want = box.picture(frames)
    letterbox.kernels_of = lambda *_: letterbox_kernels
    assert torch.equal(box.picture(frames), want)

same_picture()
assert letterbox_kernels.works(torch.device("cpu"))
"""  # noqa: E501


def test_the_kernels_give_what_torchs_operations_give_to_the_last_bit():
    pytest.importorskip("triton", reason="Triton comes with torch for GPUs alone")
    root = Path(__file__).parents[3]
    ran = subprocess.run(
        [sys.executable, "-c", INTERPRETED], capture_output=True, text=True, timeout=280, cwd=root,
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join([str(root), *sys.path])},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-4000:]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU on which they work")
def test_work_is_done_without_kernels_and_said_so_when_they_cannot_be_built(caplog):
    for name in ("nms_kernels", "letterbox_kernels"):
        assert kernels_of.__wrapped__(name, torch.device("cuda", 0)) is None
        assert f"{name} cannot be used" in caplog.text
        assert kernels_of.__wrapped__(name, torch.device("cpu")) is None
