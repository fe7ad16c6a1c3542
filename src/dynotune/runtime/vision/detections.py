"""Hold what a detector found in one frame."""

from dataclasses import dataclass

from torch import Tensor

__all__ = ["Detections"]


@dataclass(eq=False, repr=False, slots=True)
class Detections:
    """Boxes of one frame, best first, on the host.

    `len()` is the number of boxes.

    Attributes:
        rows: float32 `[N, 6]`: x1, y1, x2, y2 in pixels of the frame, score, class.
        num_candidates: number of boxes that scored above `conf`, before suppression.
        num_cut: number of these boxes that were beyond `top_k` and took no part in suppression.
    """

    rows: Tensor
    num_candidates: int
    num_cut: int

    @property
    def xyxy(self) -> Tensor:
        """Return float32 `[N, 4]`: corners in pixels of the frame, inside it."""
        return self.rows[:, :4]

    @property
    def conf(self) -> Tensor:
        """Return float32 `[N]`: scores."""
        return self.rows[:, 4]

    @property
    def cls(self) -> Tensor:
        """Return int64 `[N]`: classes."""
        return self.rows[:, 5].long()

    def __len__(self) -> int:
        return int(self.rows.shape[0])

    def __repr__(self) -> str:
        return f"Detections({len(self)} of {self.num_candidates} candidates)"
