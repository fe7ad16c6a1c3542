"""What `dynotune diagnose` says of trainings by Ultralytics, Transformers and Lightning, as these run them.

    python benchmarks/frameworks_diagnosed.py [--device cuda] [--only NAME] [--bounds] [--out FILE]

Programs whose packages are missing are skipped. Needs no network.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from lab.programs_not_written_for import DRIVERS, Program, dynotune_command, environment
from lab.provenance import RESULTS, describe, without_places
from lab.yolo import OFFLINE, photographs

DEADLINE_S = 400


YOLO = (
    "yolo train model=yolo11n.yaml data=data.yaml epochs=20 device={device_number} plots=False "
    "val=False save=False"
)
ON_GPU = [
    Program(
        "ultralytics", f"{YOLO} imgsz=640 batch=16", needs=("ultralytics",), env=OFFLINE, prepare=photographs
    ),
    Program(
        "transformers",
        """{python} {drivers}/train_gpt2.py 12 768 512 '{"max_steps": 500, "per_device_train_batch_size": 8}'""",  # noqa: E501
        needs=("transformers", "accelerate"),
    ),
    Program(
        "lightning", "{python} {drivers}/fit_images.py resnet50 224 32", needs=("lightning", "torchvision")
    ),
]
ON_CPU = [
    Program(
        "ultralytics",
        f"{YOLO} imgsz=96 batch=8 amp=False",
        needs=("ultralytics", "torchvision"),
        env=OFFLINE,
        prepare=photographs,
    ),
    Program(
        "transformers",
        "{python} {drivers}/train_gpt2.py 2 128 64 "
        """'{"max_steps": 500, "per_device_train_batch_size": 4, "use_cpu": true}'""",
        needs=("transformers", "accelerate"),
    ),
    Program(
        "lightning", "{python} {drivers}/fit_images.py resnet18 64 8", needs=("lightning", "torchvision")
    ),
]


def diagnosed(program: Program, device: str, *more: str) -> dict[str, Any]:
    """What diagnose says of it, on the terminal and in its record."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if program.prepare is not None:
            program.prepare(folder)
        words = program.words(device)
        done = subprocess.run(
            [
                *dynotune_command(),
                "diagnose",
                *more,
                "--json",
                "diagnosis.json",
                "--run-dir",
                "records",
                "--",
                *words,
            ],
            cwd=folder,
            env={**environment(folder, program.env), "COLUMNS": "110"},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        command = shlex.join(words).replace(str(DRIVERS), "lab/drivers").replace(sys.executable, "python")
        if done.returncode:
            return {"command": command, "failed": without_places(done.stderr[-3000:])}
        # The facts of the machine stand once, above.
        diagnosis = {**json.loads((folder / "diagnosis.json").read_text()), "facts": {}}
        text = without_places(json.dumps({"command": command, "said": done.stdout, "diagnosis": diagnosis}))
        return dict(json.loads(text.replace(str(folder), ".")))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--bounds", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    out = given.out or RESULTS / f"frameworks_diagnosed_{given.device}.json"
    result: dict[str, Any] = json.loads(out.read_text()) if out.is_file() else {**describe(), "programs": {}}
    more = ["--isolate-loader"] if given.bounds else []
    for program in ON_GPU if given.device == "cuda" else ON_CPU:
        if given.only and program.name not in given.only:
            continue
        if missing := program.missing():
            print(f"{program.name}: skipped, without {', '.join(missing)}")
            continue
        row = diagnosed(program, given.device, *more)
        result["programs"][program.name] = row
        out.write_text(json.dumps(result, indent=1) + "\n")
        print(f"{row['command']}\n{row.get('said') or row['failed']}", flush=True)


if __name__ == "__main__":
    main()
