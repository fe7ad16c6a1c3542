"""Options of a detector, which are checked before anything is built."""

from dataclasses import dataclass
from typing import Any, Literal

import torch

from dynotune.runtime.errors import InputError


@dataclass(frozen=True, slots=True)
class PostOptions:
    """Options of post-processing; see `PostProcess`."""

    conf: float
    iou: float
    max_det: int
    top_k: int
    agnostic: bool


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Options of the engine that runs the network; see `Engine`."""

    compile: Any
    tolerance: float | None


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a detector; see `Detector`. `sizes`: the batch sizes in ascending order."""

    imgsz: tuple[int, int]
    sizes: tuple[int, ...]
    dtype: torch.dtype
    channels_last: bool
    graphs: bool
    rect: bool
    stride: int
    color: Literal["bgr", "rgb"]
    max_frame: tuple[int, int]
    depth: int
    tracks: int
    end_to_end: bool | None
    post: PostOptions
    engine: EngineOptions

    @property
    def largest(self) -> int:
        return self.sizes[-1]

    @property
    def swap_channels(self) -> bool:
        return self.color == "bgr"

    def check(self) -> None:
        """Raise InputError if an option does not make sense."""
        sides, post, wrong = self.imgsz, self.post, None
        if len(sides) != 2 or any(side < self.stride or side % self.stride for side in sides):
            wrong = f"imgsz is {sides}; both sides must be multiples of the stride, {self.stride}"
        elif not 0 <= post.conf <= 1 or not 0 <= post.iou <= 1:
            wrong = f"conf is {post.conf} and iou is {post.iou}; both lie between 0 and 1"
        elif post.max_det < 1 or post.top_k < 1:
            wrong = f"max_det is {post.max_det} and top_k is {post.top_k}; both are at least 1"
        elif not self.sizes or self.sizes[0] < 1:
            wrong = f"batch is {self.sizes}; a batch has at least one frame"
        elif len(self.max_frame) != 2 or min(self.max_frame) < 1:
            wrong = f"max_frame is {self.max_frame}; it is (height, width) of the largest frame"
        elif self.color not in ("bgr", "rgb"):
            wrong = f"color is {self.color!r}; it is 'bgr' or 'rgb'"
        elif self.depth < 1:
            wrong = f"depth is {self.depth}; at least one upload has to be on its way"
        elif self.tracks < 1:
            wrong = f"tracks is {self.tracks}; forward passes need at least one"
        if wrong is not None:
            raise InputError(wrong + ".")
