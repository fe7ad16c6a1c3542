"""Suppress overlapping boxes without waiting for the device: exact greedy suppression over the best `top_k`
boxes.

Greedy suppression keeps a box unless a kept box of its class with a higher score overlaps it. This rule has
exactly one solution, and each application of the rule to any guess settles at least one more box. So a graph
records a fixed number of applications, and the result says whether the last application still changed
something; only then is more work done.
"""

from types import ModuleType

import torch
from torch import Tensor, nn

from dynotune.runtime.vision.kernels import kernels_of

__all__ = ["PostProcess", "nms", "suppress"]

NUM_ROUNDS = 10  # of clusters around objects, as detectors emit them, the deepest of 200 drawn ones took 8

# Fields of the row that `PostProcess` puts behind the detections of each image.
NUM_KEPT, NUM_CANDIDATES, SETTLED, FINITE = range(4)


def overlaps(boxes: Tensor, classes: Tensor | None, iou: float, dtype: torch.dtype) -> Tensor:
    """Return which box would suppress which: `[B, K, K]`, with 1 at [i, j] if box i comes before box j and
    overlaps it.

    Args:
        boxes: float32 xyxy `[B, K, 4]`, best first.
        classes: `[B, K]`; boxes of different classes do not suppress each other. None: all boxes are of one
            class.
        iou: intersection over union above which a box is suppressed.
        dtype: dtype of the result.
    """
    least, most = boxes.transpose(1, 2).split(2, dim=1)  # [B, 2, K]: x and y
    area = (most - least).prod(1)
    sides = torch.minimum(most[..., None], most[:, :, None])
    sides = sides.sub_(torch.maximum(least[..., None], least[:, :, None])).clamp_(min=0)
    # The order of operations is that of torchvision, so that ties at the threshold fall the same way.
    inter = sides[:, 0] * sides[:, 1]
    union = (area[:, :, None] + area[:, None]).sub_(inter)
    beats = inter.div_(union) > iou
    if classes is not None:
        beats &= classes[:, :, None] == classes[:, None]
    return beats.triu_(1).to(dtype)


def suppress(beats: Tensor, valid: Tensor, num_rounds: int | None) -> tuple[Tensor, Tensor]:
    """Suppress greedily; return which boxes are kept, and for which images the answer is final.

    Args:
        beats: the `[B, K, K]` result of `overlaps`.
        valid: `[B, K]` in the dtype of `beats`: 1 for a box, 0 for an empty place.
        num_rounds: number of applications of the rule. None: until nothing changes, waiting for the device
            each round.

    Returns:
        kept `[B, K]` (0 or 1), settled `[B]` (bool). If settled, `kept` is exactly that of greedy
        suppression.
    """
    start = valid[:, None]
    kept, rounds = start, 0
    while True:
        before = kept
        # 1 less the number of kept boxes that beat it, and 0 at the least.
        kept = torch.baddbmm(start, before, beats, beta=1, alpha=-1).clamp_(min=0)
        rounds += 1
        if rounds == num_rounds or (num_rounds is None and torch.equal(kept, before)):
            return kept[:, 0], (kept == before).all(-1)[:, 0]


def nms(boxes: Tensor, scores: Tensor, iou: float, *, classes: Tensor | None = None) -> Tensor:
    """Return the indices of the boxes that greedy suppression keeps, best first. Waits for the device.

    Args:
        boxes: corners of the boxes, xyxy `[N, 4]`.
        scores: score of each box, `[N]`; of equal scores, the first comes first.
        iou: overlap threshold; a box that overlaps a better box by more is dropped.
        classes: class of each box, `[N]`; if given, only boxes of the same class suppress each other.

    Returns:
        int64 `[num_kept]`, the same as `torchvision.ops.nms` (`batched_nms` with classes). Memory grows with
        N squared.
    """
    order = torch.sort(scores, descending=True, stable=True).indices
    grouped = None if classes is None else classes[order][None]
    beats = overlaps(boxes[order][None].float(), grouped, iou, torch.float32)
    kept, _ = suppress(beats, beats.new_ones(1, len(order)), None)
    return order[kept[0] > 0]


class PostProcess(nn.Module):  # type: ignore[misc]
    """Turns a YOLO model's output into detections in image coordinates, without waiting for the device.

    Args:
        end_to_end: the output is `[B, N, 6]` (xyxy, score, class) and needs no suppression; otherwise
            `[B, 4 + num_classes, N]` (centre, size, a score for each class).
        conf: score threshold; boxes with this score or less are dropped.
        iou: overlap threshold, as for `nms`.
        max_det: largest number of detections per image.
        top_k: number of best candidates per image that take part in suppression; all candidates are counted.
        agnostic: let boxes of different classes suppress each other, too.
    """

    def __init__(
        self, *, end_to_end: bool, conf: float, iou: float, max_det: int, top_k: int, agnostic: bool = False
    ) -> None:
        super().__init__()
        self.end_to_end = end_to_end
        # Kernels take no scalars of numpy.
        self.conf, self.iou, self.max_det, self.top_k = float(conf), float(iou), int(max_det), int(top_k)
        self.agnostic = agnostic

    def forward(self, raw: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """Return the detections of a batch.

        Args:
            raw: the model's output.
            places: float32 `[B, 5]`: left, top, gain, frame width, frame height of each image (`Placement`).

        Returns:
            packed float32 `[B, max_det + 1, 6]`: detections (xyxy in image coordinates, score, class), best
            first, then zeros, then a row of counts: kept, candidates, settled, finite, 0, 0. candidates
            float32 `[B, top_k, 6]`: xyxy in input coordinates, score (0: none), class; for `settle`.
        """
        # A NaN or an infinity anywhere in the output shows in its sum, and is no zero when it is taken from
        # itself.
        total = raw.sum(dim=(1, 2), dtype=torch.float32)
        finite = total - total == 0
        rows, num_candidates = self._end_to_end_rows(raw) if self.end_to_end else self._best_rows(raw)
        kernels = self._kernels(raw, rows.shape[1])
        if kernels is not None:
            packed = kernels.suppressed(
                rows, places, num_candidates, finite, iou=None if self.end_to_end else self.iou,
                by_class=not self.agnostic, max_det=self.max_det,
            )  # fmt: skip
            return packed, rows
        rounds = None if rows.device.type == "cpu" else NUM_ROUNDS
        kept, settled = self._keep(rows, rounds)
        return self._pack(rows, kept, places, num_candidates, settled, finite), rows

    def settle(self, rows: Tensor, places: Tensor, packed: Tensor) -> Tensor:
        """Recompute `packed` exactly if `forward` was not settled; `rows`: its candidates. Waits for the
        device."""
        kept, settled = self._keep(rows, None)
        counts = packed[:, self.max_det]
        return self._pack(rows, kept, places, counts[:, NUM_CANDIDATES], settled, counts[:, FINITE])

    def _kernels(self, raw: Tensor, num_rows: int) -> ModuleType | None:
        kernels = kernels_of("nms_kernels", raw.device) if raw.dtype == torch.float32 else None
        if kernels is None or num_rows > kernels.MAX_TOP_K or self.max_det > kernels.MAX_DET:
            return None
        return kernels

    def _best_rows(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        """Return the `top_k` best candidates `[B, K, 6]`, best first, and the number of all candidates."""
        num_rows = min(self.top_k, raw.shape[2])
        kernels = self._kernels(raw, num_rows)
        if kernels is not None:
            raw = raw.contiguous()
        scores, classes = raw[:, 4:].max(1)
        above = scores > self.conf
        # Stable, so that equal scores fall in the order of the output.
        candidates = nn.functional.threshold(scores, self.conf, 0)
        ordered, order = torch.sort(candidates, dim=1, descending=True, stable=True)
        if kernels is not None:
            return kernels.best_rows(raw, order, ordered, classes, num_rows), above.sum(1)
        ordered, order = ordered[:, :num_rows], order[:, :num_rows]
        boxes = raw[:, :4].gather(2, order[:, None].expand(-1, 4, -1)).float()
        centres, halves = boxes[:, :2], boxes[:, 2:] / 2
        label = classes.gather(1, order).float()
        parts = [centres - halves, centres + halves, ordered.float()[:, None], label[:, None]]
        return torch.cat([part.transpose(1, 2) for part in parts], dim=2), above.sum(1)

    def _end_to_end_rows(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        scores = raw[:, :, 4].float()
        above = scores > self.conf
        ordered, order = torch.sort(scores.masked_fill(~above, 0), dim=1, descending=True, stable=True)
        rows = raw.gather(1, order[:, :, None].expand(-1, -1, 6)).float()
        return torch.cat([rows[:, :, :4], ordered[:, :, None], rows[:, :, 5:]], dim=2), above.sum(1)

    def _keep(self, rows: Tensor, rounds: int | None) -> tuple[Tensor, Tensor]:
        dtype = torch.float32 if rows.device.type == "cpu" else torch.float16
        valid = (rows[:, :, 4] > 0).to(dtype)
        if self.end_to_end:
            return valid, torch.ones_like(valid[:, 0], dtype=torch.bool)
        classes = None if self.agnostic else rows[:, :, 5]
        if rounds is not None:
            return suppress(overlaps(rows[:, :, :4], classes, self.iou, dtype), valid, rounds)
        # Waiting is allowed: look only at the places that hold a candidate somewhere.
        num = int(valid.sum(1).max())
        found = rows[:, :num]
        beats = overlaps(found[:, :, :4], None if classes is None else classes[:, :num], self.iou, dtype)
        kept, settled = suppress(beats, valid[:, :num], None)
        return torch.cat([kept, torch.zeros_like(valid[:, num:])], dim=1), settled

    def _pack(
        self,
        rows: Tensor,
        kept: Tensor,
        places: Tensor,
        num_candidates: Tensor,
        settled: Tensor,
        finite: Tensor,
    ) -> Tensor:
        batch, max_det = rows.shape[0], self.max_det
        stays = kept > 0
        place = stays.cumsum(1) - 1
        # What is dropped is written to the last row, which the counts then take.
        place = torch.where(stays & (place < max_det), place, max_det)
        offset, gain, size = places[:, None, :2], places[:, None, None, 2:3], places[:, None, 3:]
        corners = rows[:, :, :4].view(batch, -1, 2, 2)
        corners = ((corners - offset[:, :, None]) / gain).clamp_(min=0).minimum(size[:, :, None])
        found = torch.cat([corners.flatten(2), rows[:, :, 4:]], dim=2)
        packed = rows.new_zeros(batch, max_det + 1, 6)
        packed.scatter_(1, place[:, :, None].expand(-1, -1, 6), found)
        num_kept = stays.sum(1).clamp(max=max_det)
        counts = torch.stack([count.float() for count in (num_kept, num_candidates, settled, finite)], dim=1)
        # The whole row: which of the dropped ones is written there last differs from run to run on a GPU.
        packed[:, max_det] = nn.functional.pad(counts, (0, 2))
        return packed
