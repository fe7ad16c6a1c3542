"""Programs that dynotune was not written for, what each says of itself, and what dynotune counts and sets in
them.

They come with lightning, transformers, accelerate, torch and ultralytics. A program's own count is the truth:
of its framework, of the driver in drivers/, or, where it does not count, of a witness in its process that
uses other means than dynotune.
"""

from __future__ import annotations

import csv
import importlib.metadata
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dynotune

DRIVERS = Path(__file__).parent / "drivers"
DEADLINE_S = 240
_TOLD = re.compile(r"TOLD (\{.*\})")

Truth = dict[str, Any]


@dataclass(frozen=True)
class Program:
    """A command and how its truth is known.

    Args:
        command: `{python}`, `{drivers}`, `{device}`, `{device_number}` and `{use_cpu}` are filled in.
        settings: asked of `dynotune run`.
        needs: packages without which it is skipped.
        num_ranks: processes that make steps together.
        samples_a_step: of all ranks; where given, two pairs of it are compared, too.
        env: added to the environment of the command.
        prepare: makes what it needs in its folder, before it runs.
        truth: steps, samples and settings from its folder; without it, what the processes told on standard
            output.
    """

    name: str
    command: str
    settings: tuple[str, ...] = ()
    needs: tuple[str, ...] = ("torch",)
    num_ranks: int = 1
    samples_a_step: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    prepare: Callable[[Path], None] | None = None
    truth: Callable[[Path], list[Truth]] | None = None

    def missing(self) -> list[str]:
        """Packages that are not here."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]

    def words(self, device: str) -> list[str]:
        blanks = {
            "python": sys.executable,
            "drivers": str(DRIVERS),
            "device": {"cpu": "cpu", "cuda": "gpu"}[device],
            "device_number": {"cpu": "cpu", "cuda": "0"}[device],
            "use_cpu": str(device == "cpu").lower(),
        }
        return [
            re.sub(r"\{(\w+)\}", lambda match: blanks[match[1]], word) for word in shlex.split(self.command)
        ]


def another_environment(folder: Path) -> None:
    """A venv that has torch, by the path, and neither dynotune nor anything it needs."""
    venv.create(folder / "other", with_pip=False, symlinks=True)
    site = next((folder / "other" / "lib").glob("python*")) / "site-packages"
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None
    (site / "torch.pth").write_text(f"{Path(spec.origin).parents[1]}\n")


def photographs(folder: Path) -> None:
    """A YOLO dataset: 32 pictures to train on, 8 to validate, one object in each."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    for part, num in (("train", 32), ("val", 8)):
        images, labels = folder / "data" / "images" / part, folder / "data" / "labels" / part
        images.mkdir(parents=True)
        labels.mkdir(parents=True)
        for number in range(num):
            pixels = rng.integers(0, 255, (96, 128, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(images / f"{number:02}.jpg")
            (labels / f"{number:02}.txt").write_text(f"{number % 2} 0.5 0.5 0.4 0.4\n")
    data = {
        "path": str(folder / "data"),
        "train": "images/train",
        "val": "images/val",
        "names": {0: "sand", 1: "sky"},
    }
    (folder / "data.yaml").write_text(json.dumps(data))  # JSON is YAML


def yolo_counted(folder: Path) -> list[Truth]:
    """An epoch a row of its results; 32 pictures by 8 make 4 steps."""
    with next(folder.rglob("results.csv")).open(newline="") as file:
        epochs = len(list(csv.DictReader(file)))
    return [{"steps": 4 * epochs, "samples": 32 * epochs, "settings": {}}]


_FOR_ALL = ("host.num_threads=1", "env.DYNOTUNE_NOTHING=1")
_FOR_TRAINING = (*_FOR_ALL, "optimizer.fused=true")

PROGRAMS = [
    Program(
        "Lightning, BoringModel with its sanity check and a validation after each epoch",
        """{python} {drivers}/fit_lightning.py '{"max_epochs": 2, "accelerator": "{device}", "devices": 1}'""",  # noqa: E501
        settings=(*_FOR_TRAINING, "loader.num_workers=1"),
        needs=("lightning",),
        samples_a_step=1,
    ),
    Program(
        "Lightning, accumulating 4 batches, in a shell",
        """bash -c 'cd {drivers} && {python} fit_lightning.py "$0" | cat' """
        """'{"max_epochs": 2, "accumulate_grad_batches": 4, "accelerator": "{device}", "devices": 1}'""",
        settings=(*_FOR_TRAINING, "loader.num_workers=0"),
        needs=("lightning",),
    ),
    Program(
        "Lightning, two ranks that it starts itself",
        """{python} {drivers}/fit_lightning.py """
        """'{"max_epochs": 2, "accelerator": "cpu", "devices": 2, "strategy": "ddp"}'""",
        settings=_FOR_TRAINING,
        needs=("lightning",),
        num_ranks=2,
    ),
    Program(
        "Trainer of transformers, with an evaluation every 8 steps",
        """{python} {drivers}/train_transformer.py """
        """'{"max_steps": 24, "eval_strategy": "steps", "eval_steps": 8, "use_cpu": {use_cpu}}'""",
        settings=(*_FOR_TRAINING, "loader.num_workers=1"),
        needs=("transformers", "accelerate"),
    ),
    Program(
        "Trainer of transformers, accumulating 2 batches, two ranks under python -m torch.distributed.run",
        """{python} -m torch.distributed.run --nproc-per-node 2 {drivers}/train_transformer.py """
        """'{"num_train_epochs": 3, "gradient_accumulation_steps": 2, "use_cpu": true}'""",
        settings=_FOR_TRAINING,
        needs=("transformers", "accelerate"),
        num_ranks=2,
    ),
    Program(
        "accelerate test",
        "accelerate test",
        settings=_FOR_TRAINING,
        needs=("accelerate",),
        env={"PYTHONPATH": str(DRIVERS / "witness"), "WITNESSED": "test_script.py"},
    ),
    Program(
        "torchrun, two ranks with DistributedDataParallel",
        "torchrun --nproc-per-node 2 {drivers}/train_ranks.py",
        settings=(*_FOR_TRAINING, "loader.num_workers=1"),
        num_ranks=2,
        samples_a_step=8,
    ),
    Program(
        "torch.multiprocessing, two ranks with DistributedDataParallel",
        "{python} {drivers}/train_ranks.py spawn",
        settings=_FOR_TRAINING,
        num_ranks=2,
    ),
    Program(
        "Loader workers by fork, spawn and forkserver, which run modules",
        "{python} {drivers}/train_with_workers.py",
        settings=(*_FOR_TRAINING, "loader.num_workers=1"),
    ),
    Program(
        "dynotune.step() in an environment without dynotune",
        "other/bin/python {drivers}/mark_steps.py",
        settings=(*_FOR_ALL, "loader.num_workers=1"),
        prepare=another_environment,
    ),
    Program(
        "yolo train",
        "yolo train model=yolo11n.yaml data=data.yaml epochs=3 imgsz=64 batch=8 nbs=8 workers=2 "
        "device={device_number} amp=False plots=False val=True",
        settings=("env.CUBLAS_WORKSPACE_CONFIG=@unset", "loader.num_workers=1"),
        needs=("ultralytics", "torchvision", "cv2"),
        env={"YOLO_OFFLINE": "true", "YOLO_AUTOINSTALL": "false", "YOLO_CONFIG_DIR": "."},
        prepare=photographs,
        truth=yolo_counted,
    ),
]


def environment(folder: Path, more: Mapping[str, str]) -> dict[str, str]:
    """Ours, without the way to dynotune and with the console scripts of the packages on PATH."""
    ours = Path(dynotune.__file__).parents[1]
    path = [
        entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry and Path(entry) != ours
    ]
    env = {**os.environ, "HF_HUB_OFFLINE": "1", **more}
    env["PYTHONPATH"] = os.pathsep.join([*filter(None, [more.get("PYTHONPATH")]), *path])
    scripts = folder / "bin"
    scripts.mkdir()
    for script in importlib.metadata.entry_points(group="console_scripts"):
        if script.name in ("torchrun", "accelerate", "accelerate-launch", "yolo"):
            file = scripts / script.name
            start = f"import sys\nfrom {script.module} import {script.attr}\nsys.exit({script.attr}())\n"
            file.write_text(f"#!{sys.executable}\n{start}")
            file.chmod(0o755)
    env["PATH"] = os.pathsep.join([str(scripts), env["PATH"]])
    return env


def dynotune_command() -> list[str]:
    """Start dynotune by a way that the command does not inherit."""
    start = f"import sys; sys.path[:0] = {sys.path!r}; from dynotune.cli import main; main()"
    return [sys.executable, "-c", start]


def run(program: Program, folder: Path, device: str) -> dict[str, Any]:
    """Run it under `dynotune run` in `folder`; a row of the table. Raises RuntimeError when it fails."""
    if program.prepare is not None:
        program.prepare(folder)
    begin_s = time.monotonic()
    words = program.words(device)
    done = subprocess.run(
        [*dynotune_command(), "run", "--json", str(folder / "run.json"), "--run-dir", str(folder / "records"),
         *(word for setting in program.settings for word in ("--set", setting)), "--", *words],
        cwd=folder, env=environment(folder, program.env), capture_output=True, text=True, timeout=DEADLINE_S,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(
            f"{program.name} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
        )
    told = (
        program.truth(folder) if program.truth else [json.loads(text) for text in _TOLD.findall(done.stdout)]
    )
    record = json.loads((folder / "run.json").read_text())
    stepping = [process for process in record["processes"] if process["num_steps"]]
    return {
        "program": program.name,
        "command": shlex.join(words).replace(str(DRIVERS), "drivers").replace(sys.executable, "python"),
        "step": stepping[0]["step"] if stepping else None,
        "ranks": {"counted": len(stepping), "truth": program.num_ranks},
        "steps": {
            "counted": sorted({p["num_steps"] for p in stepping}),
            "truth": sorted({t["steps"] for t in told}),
        },
        "samples": {
            "counted": total(p["num_samples"] for p in stepping),
            "truth": total(t["samples"] for t in told),
        },
        "settings": settings(record["readback"], told),
        "agent_errors": [error for process in record["processes"] for error in process["errors"]],
        "left_running": left_running(folder / "records"),
        "wall_s": round(time.monotonic() - begin_s, 1),
    }


def total(counts: Any) -> int | None:
    known = list(counts)
    return None if None in known else sum(known)


def settings(readback: Sequence[Mapping[str, Any]], told: Sequence[Truth]) -> dict[str, dict[str, Any]]:
    """For each setting what was asked, what dynotune read back, and what the program says, where it says
    it."""
    found = {}
    for entry in readback:
        own = {text(truth["settings"][entry["knob"]]) for truth in told if entry["knob"] in truth["settings"]}
        found[entry["knob"]] = {
            "asked": entry["asked"],
            "found": entry["found"],
            "ok": entry["ok"],
            "truth": "/".join(sorted(own)) or None,
        }
    return found


def text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def left_running(records: Path) -> list[int]:
    """Processes that still carry the mark of a run in `records`."""
    mark = f"DYNOTUNE_RUN={records}/".encode()
    left = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "environ").read_bytes():
                left.append(int(process.name))
        except OSError:
            continue
    return left


def agrees(row: Mapping[str, Any]) -> bool:
    """Whether all that was counted and read back is what the program says."""
    counts = all(row[what]["counted"] == row[what]["truth"] for what in ("ranks", "steps", "samples"))
    read_back = all(
        entry["ok"] and entry["found"] == entry["asked"] and entry["truth"] in (None, entry["asked"])
        for entry in row["settings"].values()
    )
    return (
        counts and read_back and bool(row["settings"]) and not row["agent_errors"] and not row["left_running"]
    )


def compare(program: Program, folder: Path, device: str) -> dict[str, Any]:
    """Two pairs of a setting that does nothing; a row: are all windows as asked, of all ranks, and is nothing
    left."""
    warmup, steps, pairs = 10, 10, 2
    begin_s = time.monotonic()
    done = subprocess.run(
        [
            *dynotune_command(),
            "compare",
            "env.DYNOTUNE_NOTHING=1",
            "--json",
            "-",
            "--run-dir",
            str(folder / "records"),
            "--pairs",
            str(pairs),
            "--warmup",
            str(warmup),
            "--steps",
            str(steps),
            "--no-lock",
            "--",
            *program.words(device),
        ],
        cwd=folder,
        env=environment(folder, program.env),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    if done.returncode:
        raise RuntimeError(f"comparing {program.name} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    comparison = json.loads(done.stdout)
    runs = [json.loads(file.read_text()) for file in (folder / "records").glob("*/*/run.json")]
    measured = [run for run in runs if run["purpose"] == "measured"]
    windows = [[window for process in run["processes"] for window in process["windows"]] for run in measured]
    return {
        "program": f"compare: {program.name}",
        "pairs": comparison["num_pairs"] + len(comparison["voided"]),
        "ranks": {"counted": sorted({len(ranks) for ranks in windows}), "truth": [program.num_ranks]},
        "steps": {"counted": sorted({w["num_steps"] for ranks in windows for w in ranks}), "truth": [steps]},
        "samples": {
            "counted": sorted({total(w["num_samples"] for w in ranks) for ranks in windows}),
            "truth": [steps * (program.samples_a_step or 0)],
        },
        "settings": settings(list(comparison["readback"].values()), []),
        "agent_errors": [
            error for run in runs for process in run["processes"] for error in process["errors"]
        ],
        "left_running": left_running(folder / "records"),
        "wall_s": round(time.monotonic() - begin_s, 1),
    }
