"""Which settings have a place in published programs, and whether git applies the patch and takes it back.

    python benchmarks/patched.py --sources FOLDER

FOLDER holds clones of the repositories, each by its name. Nothing of a program is run, and at the end each
file of a clone is as it was.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
from pathlib import Path
from typing import Any

from dynotune import knobs
from dynotune.recipes.patch import Patch, patch_of
from dynotune.schema.errors import CannotRunHere
from lab import result_file

OUT = Path(__file__).parent / "results" / "patched.json"
PROGRAMS = (
    ("nanoGPT", ".", "train.py"),
    ("minGPT", ".", "projects/chargpt/chargpt.py"),
    ("makemore", ".", "makemore.py"),
    ("pytorch-cifar", ".", "main.py"),
    ("Pytorch-UNet", ".", "train.py"),
    ("mae", ".", "main_pretrain.py"),
    ("pytorch-image-models", ".", "train.py"),
    ("lightning-hydra-template", ".", "src/train.py"),
    ("pytorch-lightning", "examples/pytorch/basics", "autoencoder.py"),
    ("pytorch-lightning", "examples/pytorch/basics", "backbone_image_classifier.py"),
    ("pytorch-lightning", "examples/pytorch/basics", "transformer.py"),
)
"""Repository, folder in which the program is started, and its file."""
SETTINGS = (
    "loader.num_workers=4",
    "loader.pin_memory=true",
    "loader.persistent_workers=true",
    "transfer.non_blocking=true",
    "optimizer.fused=true",
    "cudnn.benchmark=true",
    "matmul.fp32_precision=high",
    "precision.autocast=bf16",
    "compile.mode=default",
    "layout.channels_last=true",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sources", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=OUT)
    chosen = parser.parse_args()
    rows = [
        row(chosen.sources / repository, folder, file)
        for repository, folder, file in PROGRAMS
        if (chosen.sources / repository).is_dir()
    ]
    for each in rows:
        print(each["program"], f"{len(each['placed'])} of {len(SETTINGS)}", each["applied"], each["reversed"])
    with result_file.opened(chosen.out) as result:
        result["settings"] = SETTINGS
        result["programs"] = rows


def row(root: Path, folder: str, file: str) -> dict[str, Any]:
    name = f"{root.name}/{Path(folder, file).as_posix()}"
    before = {
        path: path.read_bytes() for path in root.rglob("*") if path.is_file() and ".git" not in path.parts
    }
    cwd = root / folder
    try:
        chosen = [knobs.parse(setting) for setting in SETTINGS]
        patch = patch_of(chosen, ["python", file], root, cwd, has_gpu=True)
    except CannotRunHere as error:
        return {
            "program": name,
            "placed": {},
            "refused": {},
            "none": error.message,
            "applied": None,
            "reversed": None,
        }
    applied = git_apply(root, patch)
    is_python = all(parses(root / edited) for edited in patch.edited if edited.endswith(".py"))
    git_apply(root, patch, "-R")
    return {
        "program": name,
        "placed": patch.places,
        "refused": patch.refused,
        "applied": applied and is_python,
        "reversed": all(path.read_bytes() == content for path, content in before.items()),
    }


def git_apply(root: Path, patch: Patch, *options: str) -> bool:
    done = subprocess.run(["git", "apply", *options, "-"], cwd=root, input=patch.diff, check=False)
    return done.returncode == 0


def parses(path: Path) -> bool:
    try:
        ast.parse(path.read_bytes())
    except SyntaxError:
        return False
    return True


if __name__ == "__main__":
    main()
