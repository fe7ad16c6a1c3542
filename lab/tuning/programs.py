"""The programs that `benchmarks/tuning.py` tunes: commands, what they need, and which other tuner can take
them."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from lab.provenance import without_places
from lab.yolo import OFFLINE
from lab.yolo import photographs as yolo_photographs

HERE = Path(__file__).resolve().parent / "commands"
TRAIN = HERE / "train.py"
AS = "env.TUNED_AS"
INFORMED = "informed"


class Arms(NamedTuple):
    """How a recipe is compared with what somebody else chose.

    Args:
        command: of both arms.
        recipe: settings that the recipe's arm has besides the recipe.
    """

    command: list[str]
    recipe: list[str]
    other: list[str]


@dataclass(frozen=True)
class Program:
    """A command that reads TUNED_AS (commands/asked.py).

    Args:
        needs: packages without which it is skipped.
        run_s: of one measured run on the device of that name, a guess until a run has told.
        tune_s: the budget of its tune.
        cannot: why a tool cannot take it.
        prepare: makes what it reads in its folder.
        table: knobs and values of its full factorial table, first what it has as written.
    """

    name: str
    words: tuple[str, ...]
    needs: tuple[str, ...] = ("torch",)
    run_s: Mapping[str, float] = field(default_factory=lambda: {"cuda": 9.0, "cpu": 8.0})
    tune_s: Mapping[str, float] = field(default_factory=lambda: {"cuda": 300.0, "cpu": 150.0})
    cannot: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    prepare: Callable[[Path], None] | None = None
    table: Mapping[str, Mapping[str, tuple[object, ...]]] = field(default_factory=dict)

    def missing(self) -> list[str]:
        return [name for name in self.needs if importlib.util.find_spec(name) is None]

    @property
    def net(self) -> str:
        """As peers.py names it."""
        return self.words[1]

    def command(self, device: str) -> list[str]:
        file, *rest = self.words
        size = "large" if device == "cuda" else "small"
        return [sys.executable, str(HERE / file), *rest, "--size", size, "--device", device]

    @property
    def hand(self) -> str:
        """What an informed hand makes of it, in words of TUNED_AS; "" where that is the program as
        written."""
        return INFORMED

    def arms(self, words: str, device: str) -> Arms:
        """Of a comparison with what `words` say."""
        return Arms(self.command(device), [], [f"{AS}={words}"])

    def peer(self, tool: str, device: str, budget_s: float, out: Path) -> list[str]:
        """The command that asks another tool, and writes what it chose into a file."""
        size = "large" if device == "cuda" else "small"
        asked = [tool, self.net, "--size", size, "--device", device]
        return [
            sys.executable, str(HERE / "peers.py"), *asked, "--budget-s", f"{budget_s:.0f}", "--out", str(out)
        ]  # fmt: skip

    def results(self, comparison: Mapping[str, Any], records: Path) -> dict[str, Any]:
        """What the arms of a comparison computed, as far as the program says so.

        Args:
            records: folder of the records that the comparison's pairs name.
        """
        return {}

    def environment(self) -> dict[str, str]:
        """Ours, without what would change how the program runs.

        Python keeps the compiled form of what it imports: without it a start can take twice as long, and a
        budget holds fewer runs.
        """
        ours = {
            name: value
            for name, value in os.environ.items()
            if name not in ("TUNED_AS", "PYTHONDONTWRITEBYTECODE")
        }
        kept = Path(tempfile.gettempdir()) / "dynotune-bytecode"
        return {**ours, "PYTHONPYCACHEPREFIX": str(kept), "HF_HUB_OFFLINE": "1", **self.env}


def photographs(folder: Path) -> None:
    """JPEG files of 500 by 400 pixels, as ImageNet's are on average."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    (folder / "pictures").mkdir(parents=True)
    for number in range(256):
        coarse = Image.fromarray(rng.integers(0, 255, (40, 50, 3), dtype=np.uint8))
        picture = coarse.resize((500, 400), Image.Resampling.BICUBIC)
        picture.save(folder / "pictures" / f"{number:03}.jpg", quality=90)


_NOT_A_STEP = (
    "it tunes a training step that it makes itself, of a net, a batch and an optimizer; Ultralytics makes "
    "its own "
    "loop, loss and optimizer from a YAML file, and has no place for the step"
)
_NOT_INFERENCE = "it tunes training steps only"
_YOLO_NEEDS = ("torch", "torchvision", "cv2", "ultralytics")

PROGRAMS = [
    Program(
        "yolo-train",
        ("yolo.py", "train"),
        needs=_YOLO_NEEDS,
        env=OFFLINE,
        prepare=yolo_photographs,
        run_s={"cuda": 22.0, "cpu": 20.0},
        tune_s={"cuda": 760.0, "cpu": 240.0},
        cannot={"autotune": _NOT_A_STEP},
    ),
    Program(
        "yolo-predict",
        ("yolo.py", "predict"),
        needs=_YOLO_NEEDS,
        env=OFFLINE,
        prepare=yolo_photographs,
        run_s={"cuda": 14.0, "cpu": 15.0},
        tune_s={"cuda": 340.0, "cpu": 150.0},
        cannot={"autotune": _NOT_INFERENCE},
    ),
    Program(
        "resnet50-jpeg",
        ("train.py", "resnet50"),
        needs=("torch", "torchvision", "PIL"),
        prepare=photographs,
        run_s={"cuda": 9.0, "cpu": 12.0},
        tune_s={"cuda": 700.0, "cpu": 150.0},
    ),
    Program(
        "gpt",
        ("train.py", "gpt"),
        needs=("torch", "transformers"),
        run_s={"cuda": 9.0, "cpu": 12.0},
        tune_s={"cuda": 600.0, "cpu": 150.0},
        table={
            "cuda": {
                "matmul.fp32_precision": ("highest", "high"),
                "precision.autocast": ("off", "bf16", "fp16"),
                "optimizer.fused": (False, True),
            },
        },
    ),
    Program(
        "bert-padded",
        ("train.py", "bert"),
        needs=("torch", "transformers"),
        run_s={"cuda": 9.0, "cpu": 12.0},
        tune_s={"cuda": 270.0, "cpu": 150.0},
    ),
    Program(
        "starved",
        ("train.py", "starved"),
        needs=("torch", "PIL"),
        prepare=photographs,
        table={
            "cpu": {"loader.num_workers": (0, 1, 2), "optimizer.fused": (False, True)},
            "cuda": {
                "loader.num_workers": (0, 4, 16),
                "loader.pin_memory": (False, True),
                "optimizer.fused": (False, True),
            },
        },
    ),
    Program(
        "mlp",
        ("train.py", "mlp"),
        run_s={"cuda": 7.0, "cpu": 7.0},
        table={
            "cuda": {
                "loader.num_workers": (0, 2, 8),
                "optimizer.fused": (False, True),
                "precision.autocast": ("off", "bf16"),
            },
        },
    ),
    Program(
        "vit",
        ("train.py", "vit"),
        needs=("torch", "transformers"),
        run_s={"cuda": 9.0, "cpu": 12.0},
        table={
            "cuda": {
                "matmul.fp32_precision": ("highest", "high", "medium"),
                "precision.autocast": ("off", "bf16"),
                "optimizer.fused": (False, True),
            },
        },
    ),
]


def folder_of(program: Program, work: Path) -> Path:
    """Its own folder below `work`, with what it reads in it."""
    folder = work.absolute() / program.name
    if not (folder / ".prepared").exists():
        folder.mkdir(parents=True, exist_ok=True)
        if program.prepare is not None:
            program.prepare(folder)
        (folder / ".prepared").touch()
    return folder


def spelled(words: list[str]) -> list[str]:
    """A command as it stands in a result."""
    return [without_places(word) if word != sys.executable else "python" for word in words]
