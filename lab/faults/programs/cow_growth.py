"""Trains on annotated windows; the annotations are Python objects, which every worker copies page by page."""

import loop
import numpy as np
import series
import torch
from torch import Tensor
from torch.utils.data import DataLoader

ITEMS = 200_000
BOXES = 8


class AnnotatedSeries(series.Series):
    """A window and the boxes drawn in it, kept as lists of floats, or in the twin as one array."""

    def __init__(self, size: series.Size, as_lists: bool) -> None:
        super().__init__(size, num=ITEMS)
        boxes = np.random.default_rng(0).random((ITEMS, BOXES, 4), dtype=np.float32)
        self.annotations = (
            [{"image": i, "boxes": rows} for i, rows in enumerate(boxes.tolist())] if as_lists else boxes
        )

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        annotation = self.annotations[index]
        boxes = annotation["boxes"] if isinstance(annotation, dict) else annotation
        area = sum(float(width) * float(height) for _, _, width, height in boxes)
        return self.window(index), int(area) % series.CLASSES


def main() -> None:
    args = loop.parser().parse_args()
    size = series.SIZES[args.device]
    loader = DataLoader(
        AnnotatedSeries(size, as_lists=args.dose > 0),
        size.batch,
        shuffle=True,
        num_workers=2 if args.device == "cpu" else 4,
        pin_memory=args.device == "cuda",
        persistent_workers=True,
    )
    batches = (batch for _ in range(loop.ENDLESS) for batch in loader)
    net = series.Net(size).to(args.device)
    optimizer = series.sgd(net, args.device)
    for _, (windows, classes) in zip(loop.steps(args.steps, args.device), batches, strict=False):
        series.train_step(net, optimizer, windows, classes, args.device)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
