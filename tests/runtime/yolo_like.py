"""Small models with the outputs of YOLO's heads, frames for them, and their detections worked out from
definitions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import nn
from torch.nn import functional

OF_A_DETECTOR = {"dynotune-copier", "dynotune-filler"}
"""Threads that live as long as a detector does, not a stream or a server of it."""


class YoloLike(nn.Module):
    """`[B, 4 + num_classes, N]` and something else, as a YOLO head in evaluation; boxes overlap their
    neighbours."""

    stride = 8

    def __init__(self, num_classes: int = 3, seed: int = 0) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4 + num_classes, self.stride, stride=self.stride)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
        self.eval().requires_grad_(False)

    def forward(self, images):
        height, width = images.shape[2] // self.stride, images.shape[3] // self.stride
        out = self.conv(images - 0.5).flatten(2)
        rows = torch.arange(height, device=images.device).repeat_interleave(width)
        columns = torch.arange(width, device=images.device).repeat(height)
        centres = (torch.stack([columns, rows]).to(images.dtype) + 0.5) * self.stride
        boxes = [centres + 4 * out[:, :2], 20 + 10 * out[:, 2:4].tanh()]
        return torch.cat([*boxes, out[:, 4:].sigmoid()], 1), {"not": "detections"}


class EndToEnd(nn.Module):
    """The same boxes as `[B, N, 6]`, not suppressed."""

    def __init__(self, num_boxes: int = 30) -> None:
        super().__init__()
        self.inner, self.num_boxes = YoloLike(), num_boxes
        self.eval()

    def forward(self, images):
        raw = self.inner(images)[0].transpose(1, 2)
        scores, classes = raw[..., 4:].max(-1)
        best, order = scores.topk(self.num_boxes, dim=1)
        boxes = raw[..., :4].gather(1, order[..., None].expand(-1, -1, 4))
        centre, half = boxes[..., :2], boxes[..., 2:] / 2
        label = classes.gather(1, order)[..., None].to(raw.dtype)
        return torch.cat([centre - half, centre + half, best[..., None], label], -1)


def frames(num: int, size: tuple[int, int] = (48, 64), seed: int = 0) -> list[np.ndarray]:
    """Distinct frames; coarse enough that resizing leaves something of them."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (num, -(-size[0] // 4), -(-size[1] // 4), 3), dtype=np.uint8)
    return [np.ascontiguousarray(one.repeat(4, 0).repeat(4, 1)[: size[0], : size[1]]) for one in coarse]


def failing_to_write(array):
    """A `HostArray` of frames that cannot be read after all."""
    return replace(
        array, write=lambda into: 1 / 0, parts=tuple(failing_to_write(part) for part in array.parts)
    )


def greedy(boxes, scores, iou, classes=None) -> list[int]:
    """Greedy suppression by its definition, box by box, in float32."""
    boxes = np.asarray(boxes, np.float32)
    kept: list[int] = []
    for index in np.argsort(-np.asarray(scores, np.float32), kind="stable"):
        rivals = [k for k in kept if classes is None or classes[k] == classes[index]]
        if not any(_iou(boxes[k], boxes[index]) > np.float32(iou) for k in rivals):
            kept.append(int(index))
    return kept


def _iou(a, b):
    inter = max(min(a[2], b[2]) - max(a[0], b[0]), np.float32(0))
    inter *= max(min(a[3], b[3]) - max(a[1], b[1]), np.float32(0))
    with np.errstate(invalid="ignore", divide="ignore"):
        return inter / (np.float32((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1])) - inter)


def expected(model, frame, *, imgsz, conf=0.25, iou=0.7, max_det=300, rect=True) -> np.ndarray:
    """Detections `[N, 6]` of one BGR frame by other means: torch's resize, and suppression box by box."""
    height, width = frame.shape[:2]
    gain = min(imgsz / height, imgsz / width)
    new_height, new_width = round(height * gain), round(width * gain)
    # A copy, as torch knows no negative strides.
    image = torch.from_numpy(frame[..., ::-1].copy()).permute(2, 0, 1)[None].float()
    image = functional.interpolate(image, (new_height, new_width), mode="bilinear", align_corners=False)
    image = (image + 0.5).floor() / 255
    pad_y, pad_x = imgsz - new_height, imgsz - new_width
    if rect:
        pad_y, pad_x = pad_y % 32, pad_x % 32
    top, left = round(pad_y / 2 - 0.1), round(pad_x / 2 - 0.1)
    image = functional.pad(image, (left, pad_x - left, top, pad_y - top), value=114 / 255)
    raw = model(image)[0][0].T.numpy()
    scores, classes = raw[:, 4:].max(1), raw[:, 4:].argmax(1)
    raw, scores, classes = raw[scores > conf], scores[scores > conf], classes[scores > conf]
    half = raw[:, 2:4] / 2
    boxes = np.concatenate([raw[:, :2] - half, raw[:, :2] + half], 1)
    kept = greedy(boxes, scores, iou, classes)[:max_det]
    boxes = (boxes[kept] - [left, top, left, top]) / gain
    boxes = boxes.clip(0, [width, height, width, height])
    return np.concatenate([boxes, scores[kept, None], classes[kept, None]], 1)
