"""What a training by Ultralytics reads, and the environment that keeps it from the network."""

from __future__ import annotations

import json
from pathlib import Path

OFFLINE = {"YOLO_OFFLINE": "true", "YOLO_AUTOINSTALL": "false", "YOLO_CONFIG_DIR": "."}


def photographs(folder: Path) -> None:
    """A YOLO dataset of 320 pictures, 640 by 480, three objects in each."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    for part, num in (("train", 320), ("val", 16)):
        images, labels = folder / "data" / "images" / part, folder / "data" / "labels" / part
        images.mkdir(parents=True)
        labels.mkdir(parents=True)
        for number in range(num):
            coarse = rng.integers(0, 255, (24, 32, 3), dtype=np.uint8)
            Image.fromarray(coarse).resize((640, 480), Image.Resampling.BICUBIC).save(
                images / f"{number:03}.jpg"
            )
            boxes = [f"{k % 2} {0.2 + 0.3 * k:.2f} 0.5 0.2 0.3" for k in range(3)]
            (labels / f"{number:03}.txt").write_text("\n".join(boxes) + "\n")
    data = {
        "path": str(folder / "data"),
        "train": "images/train",
        "val": "images/val",
        "names": {0: "sand", 1: "sky"},
    }
    (folder / "data.yaml").write_text(json.dumps(data))  # JSON is YAML
