"""What another tuner chooses for one of these programs: python peers.py autotune|slowai PROGRAM --out FILE

Writes what it chose, in the words of TUNED_AS, what it claims, and all that it tried. The program itself, run
with TUNED_AS, then does what the tool's own answer does:

- pytorch-autotune is given the net, one batch, the loss, the optimizer and a budget, as its README has it.
  Besides what its configuration names it sets TF32 and cudnn.benchmark wherever the precision is not the
  default.
- slowai is given a file whose `main()` makes some steps of the program. Its `int8_dynamic_quant` changes no
  module of these nets, its `channels_last` sets cudnn.benchmark and nothing else, and it compiles `main()` by
  reduce-overhead.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
STEPS = {"gpt": 8, "bert": 8, "resnet50": 8, "vit": 8, "starved": 8, "mlp": 150, "train": 8, "predict": 30}
SLOWAI = {
    "tf32_tensor_cores": "tf32",
    "high_matmul_precision": "tf32",
    "bf16_autocast": "amp=bf16",
    "fp16_autocast": "amp=fp16",
    "cudnn_benchmark": "cudnn_benchmark",
    "channels_last": "cudnn_benchmark",
    "torch_compile": "compile=reduce-overhead",
    "int8_dynamic_quant": "",
}
WORKLOAD = """import sys
sys.path.insert(0, {here!r})
from {module} import steps
run = steps({name!r}, {size!r}, {device!r})
def main():
    run({num})
"""


def words_of_autotune(config: dict[str, Any]) -> str:
    """Of its `TrialConfig`, as a dict; with sgd it ignores `fused_opt`, as the program does."""
    words = [] if config["precision"] == "fp32_default" else ["tf32", "cudnn_benchmark"]
    words += {"amp_bf16": ["amp=bf16"], "amp_fp16": ["amp=fp16"]}.get(config["precision"], [])
    words += [] if config["compile"] == "off" else [f"compile={config['compile']}"]
    words += [
        word for word, key in (("channels_last", "channels_last"), ("fused", "fused_opt")) if config[key]
    ]
    return ",".join(words)


def autotune(name: str, size: str, device: str, budget_s: int) -> dict[str, Any]:
    import torch
    from asked import asked
    from nets import TRAININGS
    from pytorch_autotune.tuner import autotune as tuned
    from train import batches

    torch.manual_seed(0)
    training = TRAININGS[name](size == "large")
    batch = next(batches(training, asked(""), device))
    found = tuned(
        training.net, batch if isinstance(batch, dict) else tuple(batch), optimizer=training.optimizer,
        lr=training.lr, budget=budget_s, device=device, cache=False,
    )  # fmt: skip
    report = found.report.to_dict()
    claimed = next((t["speedup"] for t in report["trials"] if t["config"] == report["winner"]), None)
    return {"chosen": words_of_autotune(report["winner"]), "claimed": claimed, "trials": report["trials"]}


def slowai(name: str, size: str, device: str, folder: Path) -> dict[str, Any]:
    module = "yolo" if name in ("train", "predict") else "train"
    file = folder / f"slowai_{name}.py"
    file.write_text(
        WORKLOAD.format(here=str(HERE), module=module, name=name, size=size, device=device, num=STEPS[name])
    )
    start = "import sys; from slowai.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", start, "fix", str(file), "--json"], capture_output=True, text=True
    )
    match = re.search(r"^\{$.*^\}$", done.stdout, re.DOTALL | re.MULTILINE)
    if match is None:
        return {"failed": (done.stderr or done.stdout)[-1500:]}
    report = json.loads(match[0])
    best = report["best"]
    if best is not None and best not in SLOWAI:
        return {"failed": f"its answer {best} is not known here"}
    trials = [{key: row[key] for key in ("name", "speedup", "error")} for row in report["remedies"]]
    claimed = next((row["speedup"] for row in trials if row["name"] == best), None)
    chosen = SLOWAI[best] if best else ""
    if device == "cpu" and chosen.startswith("amp="):
        chosen = ""  # its autocast is CUDA's, and does nothing there
    return {
        "chosen": chosen,
        "best": best,
        "claimed": claimed,
        "regime": report["baseline"].get("regime"),
        "trials": trials,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tool", choices=("autotune", "slowai"))
    parser.add_argument("program", choices=STEPS)
    parser.add_argument("--size", choices=("small", "large"), default="large")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--budget-s", type=int, default=120)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    began_s = time.monotonic()
    if args.tool == "autotune":
        found = autotune(args.program, args.size, args.device, args.budget_s)
    else:
        found = slowai(args.program, args.size, args.device, args.out.absolute().parent)
    args.out.write_text(json.dumps({**found, "took_s": round(time.monotonic() - began_s, 1)}, default=str))


if __name__ == "__main__":
    main()
