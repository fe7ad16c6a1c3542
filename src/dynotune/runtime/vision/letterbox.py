"""Make frames of any size into a network's input, on the device: resize, pad, reorder colours, scale.

The resize is OpenCV's linear one (half-pixel centres, no smoothing, edges repeated), rounded to whole levels
as OpenCV rounds, so that a network receives the kind of picture on which it was trained.
"""

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from dynotune.runtime.errors import InputError
from dynotune.runtime.vision.kernels import kernels_of

__all__ = ["Letterbox", "Placement", "place", "rows_read"]

GREY = 114  # the level that YOLO models are trained to see around a picture
FEW = 0.75  # of a frame's rows; more are copied faster all together


@dataclass(frozen=True, slots=True)
class Placement:
    """Position of a frame in the network's input.

    Args:
        frame_height, frame_width: size of the frame, in its own pixels.
        height, width: size of the network's input.
        top, left: position of the resized frame inside the input, in input pixels.
        resized_height, resized_width: size of the resized frame.
        gain: input pixels per frame pixel; boxes are mapped back by `(x - left) / gain`.
    """

    frame_height: int
    frame_width: int
    height: int
    width: int
    top: int
    left: int
    resized_height: int
    resized_width: int
    gain: float


def place(
    frame_size: tuple[int, int], imgsz: tuple[int, int], *, stride: int = 32, rect: bool = True
) -> Placement:
    """Return the position of a frame of `frame_size` (height, width) in an input of at most `imgsz` (height,
    width).

    Args:
        rect: pad each side only to the next multiple of `stride`; otherwise to the whole of `imgsz`.
    """
    frame_height, frame_width = frame_size
    gain = min(imgsz[0] / frame_height, imgsz[1] / frame_width)
    resized_height = max(1, round(frame_height * gain))
    resized_width = max(1, round(frame_width * gain))
    pad_height, pad_width = imgsz[0] - resized_height, imgsz[1] - resized_width
    if rect:
        pad_height, pad_width = pad_height % stride, pad_width % stride
    return Placement(
        frame_height=frame_height,
        frame_width=frame_width,
        height=resized_height + pad_height,
        width=resized_width + pad_width,
        # Of an odd number of rows the larger half goes below, and the same for columns.
        top=round(pad_height / 2 - 0.1),
        left=round(pad_width / 2 - 0.1),
        resized_height=resized_height,
        resized_width=resized_width,
        gain=gain,
    )


def _taps(size: int, resized: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return, for each resized coordinate, the two source coordinates that it mixes, and the weight of the
    second."""
    # In doubles, as a coordinate of a large frame has few bits left for its fraction in floats.
    centre = (torch.arange(resized, dtype=torch.float64, device="cpu") + 0.5) * (size / resized) - 0.5
    centre = centre.clamp(0, size - 1)
    first = centre.floor().to(torch.int64)
    weight = (centre - first).to(torch.float32)
    return first, torch.where(weight > 0, first + 1, first), weight


@functools.lru_cache(maxsize=256)
def rows_read(placement: Placement) -> Tensor | None:
    """Return the indices of a frame's rows that its resize reads.

    Returns:
        int64, ascending, on the host; None if there are so many that copying all rows is as good.
    """
    up, down, _ = _taps(placement.frame_height, placement.resized_height)
    rows = torch.cat([up, down]).unique()
    return rows if len(rows) <= FEW * placement.frame_height else None


class Letterbox:
    """Letterboxes frames of one size into a network's input.

    Works on the current stream and never waits. Its tables (source coordinates and weights) are computed
    once.

    Args:
        placement: position from `place`.
        device: device of frames and input.
        swap_channels: whether frames are BGR and the network expects RGB.
        rows: the rows that frames contain, ascending, including all of `rows_read`; None means all rows.
    """

    def __init__(
        self, placement: Placement, device: torch.device, *, swap_channels: bool, rows: Tensor | None = None
    ) -> None:
        self.placement = placement
        self.num_rows = placement.frame_height if rows is None else len(rows)
        self._swap = swap_channels
        up, down, weight_y = _taps(placement.frame_height, placement.resized_height)
        left, right, weight_x = _taps(placement.frame_width, placement.resized_width)
        if rows is not None:
            up, down = torch.searchsorted(rows, up), torch.searchsorted(rows, down)
        lines, columns, width = (up, up, down, down), (left, right, left, right), placement.frame_width
        pixels = [
            (line[:, None] * width + column).reshape(-1) for line, column in zip(lines, columns, strict=True)
        ]
        self._pixels = torch.cat(pixels).to(device, torch.int32)
        by_row, by_column = (1 - weight_y, weight_y), (1 - weight_x, weight_x)
        weights = torch.stack([y[:, None] * x for y in by_row for x in by_column])
        self._weights = weights.reshape(4, -1, 1).to(device)

    @property
    def frame_bytes(self) -> int:
        """Return the bytes of a frame's rows."""
        return self.num_rows * self.placement.frame_width * 3

    @property
    def tables(self) -> list[Tensor]:
        """Return the tensors that `picture` reads besides frames."""
        return [self._pixels, self._weights]

    def __call__(self, frames: Tensor, out: Tensor, *, pads: bool = True) -> Tensor:
        """Letterbox `frames` into `out`.

        Args:
            frames: the frames to resize, as for `picture`.
            out: `[B, 3, height, width]` with a floating-point dtype and any layout.
            pads: also fill the border around the picture; it may still be there from earlier frames of this
                size.

        Returns:
            `out`.
        """
        if pads:
            self.pad(out)
        self.region(out).copy_(self.picture(frames))
        return out

    def picture(self, frames: Tensor) -> Tensor:
        """Resize frames.

        Args:
            frames: uint8 `[B, num_rows, frame_width, 3]`.

        Returns:
            float32 `[B, 3, resized_height, resized_width]`, 0 to 1, in the network's order of colours.

        Raises:
            InputError: if the frames have another shape or dtype.
        """
        at, batch = self.placement, frames.shape[0]
        if frames.shape[1:] != (self.num_rows, at.frame_width, 3) or frames.dtype != torch.uint8:
            raise InputError(
                f"Frames of shape {tuple(frames.shape)} and {frames.dtype} were given to a letterbox for "
                f"[B, {self.num_rows}, {at.frame_width}, 3] of torch.uint8."
            )
        frames = frames.contiguous()
        kernels = kernels_of("letterbox_kernels", frames.device)
        if kernels is not None:
            mixed = kernels.picture(frames, self._pixels, self._weights, swap_channels=self._swap)
        else:
            corners = frames.view(batch, -1, 3).index_select(1, self._pixels).view(batch, 4, -1, 3)
            # In the order of the kernel, so that both round alike.
            mixed = corners[:, 0] * self._weights[0]
            for corner in range(1, 4):
                mixed += corners[:, corner] * self._weights[corner]
            # Halves go up, as in OpenCV.
            mixed.add_(0.5).floor_().mul_(1 / 255)
            if self._swap:
                mixed = mixed.flip(-1)
        return mixed.view(batch, at.resized_height, at.resized_width, 3).permute(0, 3, 1, 2)

    def frames_in(self, memory: Tensor, num: int) -> Tensor:
        """Return the first `num` frames in flat memory as a view `[num, num_rows, frame_width, 3]`."""
        shape = (num, self.num_rows, self.placement.frame_width, 3)
        return memory[: num * shape[1] * shape[2] * 3].view(shape)

    def pad(self, out: Tensor) -> None:
        """Fill `out` with the border colour, if the picture leaves a border."""
        at = self.placement
        if (at.resized_height, at.resized_width) != (at.height, at.width):
            out.fill_(GREY / 255)

    def region(self, out: Tensor) -> Tensor:
        """Return the part of `out` that the picture fills, as a view."""
        at = self.placement
        return out[:, :, at.top : at.top + at.resized_height, at.left : at.left + at.resized_width]
