"""Outputs of models for which `nms_kernels` and torch's operations must give the same, to the last bit."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from dynotune.runtime.vision.nms import PostProcess

PLACES = torch.tensor(
    [[3.0, 5.0, 0.37, 90.0, 77.0], [0.0, 0.0, 1.0, 40.0, 40.0], [10.0, 2.0, 3.0, 1000.0, 9.0]]
)


@st.composite
def outputs(draw):
    """A `PostProcess` and an output for it: boxes on a coarse grid with coarse scores, or anywhere."""
    batch, num = draw(st.integers(1, 3)), draw(st.sampled_from([1, 31, 33, 100, 300, 1500]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**30)))
    raw = torch.rand(batch, 4 + draw(st.integers(1, 3)), num, generator=generator)
    raw[:, :4] *= 40
    raw[:, 2:4] /= 2
    if draw(st.booleans()):
        raw[:, :4] = raw[:, :4].round()
        raw[:, 4:] = (raw[:, 4:] * 4).round() / 4
    # Few, some or all of them are candidates, and not equally many in each image.
    raw[:, 4:] *= (
        torch.rand(batch, 1, num, generator=generator) < torch.rand(batch, 1, 1, generator=generator)
    ).float()
    process = PostProcess(
        end_to_end=draw(st.booleans()), conf=0.25, iou=draw(st.sampled_from([0.0, 0.3, 0.5, 0.7, 1.0])),
        max_det=draw(st.sampled_from([1, 5, 300])), top_k=draw(st.sampled_from([1, 64, 300, 1024])),
        agnostic=draw(st.booleans()),
    )  # fmt: skip
    if process.end_to_end:
        classes = (torch.rand(batch, num, 1, generator=generator) * 3).round()
        raw = torch.cat([raw[:, :5].transpose(1, 2), classes], dim=2)
    return process, raw, PLACES[:batch]
