"""How often the gate `startup time --against FILE --fail-on slower` finds a slower start, and calls an
unchanged one slower.

Real, on a program whose start computes and never sleeps; `--share 0` is a start that did not change:

    python benchmarks/start_gates.py --gates 10 --share 0.1
    python benchmarks/start_gates.py --gates 20 --share 0

Simulated, with the shipped judgement; the noise is that of a start's logarithm:

    python benchmarks/start_gates.py --simulate 1000

Each gate makes a record of its own first. A gate is kept as soon as it ended; a second call adds more, up to
the number of `--gates` for that share.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from dynotune.measure.startup import against
from dynotune.schema import document
from dynotune.schema.comparison import CONFIDENCE
from dynotune.schema.run import RunSpec
from dynotune.schema.startup import CACHE_STATES, Start, StartBlock, Startup
from lab import result_file
from lab.provenance import RESULTS

RECORD_BLOCKS, GATE_BLOCKS = 6, 4
MARGIN = 0.05
SHARES = (0.0, 0.05, 0.10, 0.20)
NOISES = (0.01, 0.02, 0.04, 0.08)
READY = "ready"
EXIT_CODES = {0: "not slower", 1: "slower", 5: "undecided"}
PROGRAM = '''"""A start that computes, and never sleeps."""

import os
import time

total = 0
for number in range(int({turns} * (1 + float(os.environ.get("PLANTED_SHARE", "0"))))):
    total += number * number % 7
print("ready", flush=True)
time.sleep(1000)
'''
TURNS = 4_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--gates", type=int, default=0, help="real gates of this share, with those kept")
    parser.add_argument("--share", type=float, default=0.1, help="what a start takes more; 0: nothing")
    parser.add_argument("--simulate", type=int, default=0, help="simulated gates of each share and noise")
    parser.add_argument("--until-s", type=float, default=float("inf"), help="begin no gate after this time")
    parser.add_argument("--out", type=Path, default=RESULTS / "start_gates_cpu.json")
    chosen = parser.parse_args()
    if chosen.simulate:
        simulate(chosen.simulate, chosen.out)
    end_s = time.monotonic() + chosen.until_s
    while num_kept(chosen.out, chosen.share) < chosen.gates and time.monotonic() < end_s:
        gate = real_gate(chosen.share)
        with result_file.opened(chosen.out) as result:
            result.setdefault("gates", []).append(gate)
        print(json.dumps(gate), flush=True)
    print(table(result_file.read(chosen.out)))


def num_kept(out: Path, share: float) -> int:
    return sum(gate["share"] == share for gate in result_file.read(out).get("gates", []))


def real_gate(share: float) -> dict[str, Any]:
    """Return the verdict of one gate after a record of its own, in fresh folders."""
    began_s, load = time.monotonic(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        record, answer = Path(folder, "record.json"), Path(folder, "answer.json")
        Path(folder, "start.py").write_text(PROGRAM.format(turns=TURNS))
        time_starts(folder, ["--blocks", str(RECORD_BLOCKS), "--json", str(record)], share=0.0)
        options = ["--blocks", str(GATE_BLOCKS), "--against", str(record), "--fail-on", "slower"]
        code = time_starts(folder, [*options, "--json", str(answer)], share=share)
        changes = document.read(answer, Startup).changes
    return {
        "share": share,
        "verdict": EXIT_CODES.get(code, f"exit code {code}"),
        "changes": [[change.arm, change.verdict, change.ratio, change.ci] for change in changes],
        "load_1min_before": round(load, 1),
        "minutes": round((time.monotonic() - began_s) / 60, 1),
    }


def time_starts(folder: str, options: list[str], *, share: float) -> int:
    options = ["--ready-pattern", READY, "--run-dir", str(Path(folder, "runs")), *options]
    words = [sys.executable, "-m", "dynotune", "startup", "time", *options, "--", sys.executable, "start.py"]
    env = {**os.environ, "PLANTED_SHARE": str(share)}
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, check=False).returncode


def simulate(num_gates: int, out: Path) -> None:
    rows = [simulated_row(share, sd, num_gates) for share in SHARES for sd in NOISES]
    with result_file.opened(out) as result:
        result["simulated"] = {"gates_of_a_row": num_gates, "confidence": CONFIDENCE, "rows": rows}


def simulated_row(share: float, sd: float, num_gates: int) -> dict[str, Any]:
    draw = random.Random(f"{share} {sd}")
    counts: collections.Counter[str] = collections.Counter()
    for _ in range(num_gates):
        before = simulated_record(draw, RECORD_BLOCKS, 1.0, sd)
        verdicts = {
            change.verdict
            for change in against.changes(before, simulated_record(draw, GATE_BLOCKS, 1 + share, sd))
        }
        counts[
            "slower" if "slower" in verdicts else "undecided" if "undecided" in verdicts else "not slower"
        ] += 1
    return {"share": share, "sd_of_a_starts_logarithm": sd, **counts}


def simulated_record(draw: random.Random, num_blocks: int, start_s: float, sd: float) -> Startup:
    blocks = [
        StartBlock(
            starts=[
                Start(arm=arm, run="", value_s=start_s * draw.lognormvariate(0, sd), phases={}, added=[])
                for arm in CACHE_STATES
            ]
        )
        for _ in range(num_blocks)
    ]
    run = RunSpec(command=["program"], cwd=Path("/"), env={}, base=Path("/"))
    return Startup(id="", run=run, margin=MARGIN, max_blocks=num_blocks, blocks=blocks)


def table(result: dict[str, Any]) -> str:
    lines = []
    for share in sorted({gate["share"] for gate in result.get("gates", [])}):
        gates = [gate for gate in result["gates"] if gate["share"] == share]
        counts = collections.Counter(gate["verdict"] for gate in gates)
        load = statistics.median(gate["load_1min_before"] for gate in gates)
        lines.append(f"real, +{share:.0%}: {dict(counts)} of {len(gates)}, median load {load}")
    for row in result.get("simulated", {}).get("rows", []):
        lines.append(f"simulated {row}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
