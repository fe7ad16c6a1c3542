"""Another tool on an unchanged command: python peers.py TOOL --budget-s S --out FILE -- COMMAND

Writes what it chose, in settings of dynotune, what it claims, what it says, and after how many seconds.
Standard library only: it runs where the tool is installed, and needs nothing of this project.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path

CANNOT = {
    "aitune": "it tunes modules for inference that a script hands to it, and takes no command",
    "autotune": "it takes a net, a batch, a loss and an optimizer from code, and no command",
    "slowai": "it takes a file whose main() makes some steps of its own, and no command with arguments",
}
"""By tool: why it cannot take an unchanged command."""
NO_SCRIPT = "it takes the file of a script, and this command names a module or a program"
_WORDS = (
    (re.compile(r"num_workers=(\d+)"), "loader.num_workers={0}"),
    (re.compile(r"pin_memory=True"), "loader.pin_memory=true"),
    (re.compile(r"cudnn\.benchmark = True"), "cudnn.benchmark=true"),
)
Told = dict[str, object]


def settings_of(described: str) -> list[str]:
    """What train-doctor calls its proven change, in settings of dynotune."""
    found = ((pattern.search(described), setting) for pattern, setting in _WORDS)
    return [setting.format(*match.groups()) for match, setting in found if match]


def train_doctor(command: list[str], budget_s: float) -> Told:
    """Its `fix`, with its usual numbers of runs and steps; any run may take all of the budget."""
    words = ["fix", "--json", "--no-card", "--quiet", "--timeout", f"{budget_s:.0f}", "--", *command]
    ran = subprocess.run([sys.executable, "-m", "train_doctor", *words], stdout=subprocess.PIPE, text=True)
    at = ran.stdout.find("{")
    if at < 0:
        return {"failed": f"it ended with {ran.returncode}: {ran.stdout[-500:]}"}
    found = json.loads(ran.stdout[at:])
    if "headline" not in found:
        return {"chosen": None, "no_answer": json.dumps(found.get("error", found))[-500:]}
    proven = found.get("proven") or {}
    claimed = (proven.get("ratio") or {}).get("point")
    told = {
        "says": found["headline"],
        "tried": [one.get("id") for one in found.get("candidates", [])],
        "suggests": [one.get("id") for one in found.get("suggestions", [])],
    }
    return {"chosen": " ".join(settings_of(proven.get("describe", ""))), "claimed": claimed, **told}


def traceml(command: list[str], budget_s: float) -> Told:
    """Its diagnosis of a run that is ended when the budget is: it chooses no setting."""
    script, *rest = command[1:]
    words = ["run", script, "--mode", "summary", "--logs-dir", "traceml_logs", "--args", *rest]
    process = subprocess.Popen(
        [sys.executable, "-m", "traceml_ai.launcher.cli", *words], stdout=subprocess.PIPE, text=True
    )
    try:
        said, _ = process.communicate(timeout=budget_s)
    except subprocess.TimeoutExpired:
        process.terminate()
        said, _ = process.communicate()
    files = sorted(Path("traceml_logs").rglob("final_summary.json"), key=lambda file: file.stat().st_mtime)
    if not files:
        return {"failed": f"it ended with {process.returncode} and no summary: {said[-500:]}"}
    found = json.loads(files[-1].read_text())["primary_diagnosis"]
    says = " ".join(str(found.get(name, "")) for name in ("status", "summary", "action"))
    return {"chosen": None, "no_answer": "it diagnoses, and chooses no setting", "says": says}


TOOLS = {"train-doctor": train_doctor, "traceml": traceml}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tool", choices=list(TOOLS))
    parser.add_argument("--budget-s", type=float, required=True)
    parser.add_argument("--out", type=Path, required=True)
    at = sys.argv.index("--")
    given = parser.parse_args(sys.argv[1:at])
    began_s = time.monotonic()
    told = TOOLS[given.tool](sys.argv[at + 1 :], given.budget_s)
    given.out.write_text(json.dumps({**told, "took_s": round(time.monotonic() - began_s, 1)}))


if __name__ == "__main__":
    main()
