"""Whether `dynotune diagnose` names the rank that holds the others up, and the phase in which it does.

    python benchmarks/stragglers.py [--device cpu|cuda] [--ranks 4] [--delays 20 50 100 200]
        [--phases input …]
        [--slow 1] [--clean 3] [--net resnet …] [--spin] [--seed N] [--side-by-side N] [--budget S]
        [--keep DIR]
        [--out FILE]

Each cell diagnoses `programs/straggler.py` under torchrun, as a user would. One rank (or `--slow` of them)
waits `--delays` milliseconds a step in one phase, has longer samples (`length`), or shares its core with many
processes (`cores`); or none does. A cell is right if these ranks are named and no other, and this phase
alone: of `length` forward, backward or both; of `cores` any or none, since a core taken is missing in all. A
clean one is right if nobody is named. `said` tells whether the finding is more than low, as it is not if
recording slowed steps by more than the rank is late. `--seed` draws ranks and nets. What is in FILE is not
run again; no cell is begun once `--budget` seconds are over. `--side-by-side` runs so many cells at once,
each on GPUs and cores of its own. `--keep` packs the traces of cells that are not right, about a MB each for
two ranks.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import os
import queue
import random
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab import result_file
from lab.provenance import RESULTS, without_places

PROGRAM = Path(__file__).parent / "programs" / "straggler.py"
NETS = ("resnet", "transformer")
PHASES = {"cpu": ("input", "forward", "backward", "optimizer")}
PHASES["cuda"] = ("input", "upload", "forward", "backward", "optimizer")
DEADLINE_S = 150

Row = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """A fault, planted into ranks of a net; `delay_ms`: None for faults without one."""

    net: str
    fault: str
    delay_ms: int | None
    ranks: tuple[int, ...]
    number: int = 0

    @property
    def key(self) -> str:
        dose = (
            f" {self.delay_ms} ms"
            if self.delay_ms is not None
            else f" {self.number}" * (self.fault == "none")
        )
        return f"{self.net} {self.fault}{dose}" + f" on {len(self.late)} ranks" * (len(self.late) > 1)

    def command(self, args: argparse.Namespace) -> list[str]:
        start = [
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(args.ranks),
            str(PROGRAM),
        ]
        what = [
            "--fault",
            self.fault,
            "--net",
            self.net,
            "--rank",
            *map(str, self.ranks),
            "--device",
            args.device,
        ]
        spin = ["--spin"] * (args.spin and self.fault in ("forward", "backward"))
        return [sys.executable, *start, *what, "--delay", str((self.delay_ms or 0) / 1e3), *spin]

    @property
    def late(self) -> set[int]:
        return set() if self.fault == "none" else set(self.ranks)

    def is_right(self, named: Sequence[Row]) -> bool:
        accepted = {"forward", "backward"} if self.fault == "length" else {self.fault}
        if {one["rank"] for one in named} != self.late:
            return False
        return self.fault == "cores" or all(one["phases"] and {*one["phases"]} <= accepted for one in named)


def cells(args: argparse.Namespace) -> Iterator[Cell]:
    """Nets take turns, so that each phase and each delay meets all of them; ranks are drawn."""
    drawn = random.Random(args.seed)
    first = drawn.randrange(len(args.net))

    def cell(turn: int, fault: str, delay_ms: int | None = None) -> Cell:
        ranks = tuple(sorted(drawn.sample(range(args.ranks), args.slow)))
        return Cell(args.net[(first + turn) % len(args.net)], fault, delay_ms, ranks, turn)

    for at, phase in enumerate(args.phases or PHASES[args.device]):
        yield from (cell(at + turn, phase, delay_ms) for turn, delay_ms in enumerate(args.delays))
    yield from (cell(turn, fault) for fault in args.others for turn in range(len(args.net)))
    yield from (cell(turn, "none") for turn in range(args.clean))


def measured(cell: Cell, args: argparse.Namespace, lane: int) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder, "diagnosis.json")
        options = ["--json", str(found), "--run-dir", folder, "--warmup", "10", "--steps", "20", "--no-lock"]
        command = [sys.executable, "-m", "dynotune", "diagnose", *options, "--", *cell.command(args)]
        env, cores = os.environ | {"OMP_NUM_THREADS": "1"}, sorted(os.sched_getaffinity(0))
        if args.device == "cuda":
            mine = range(lane * args.ranks, (lane + 1) * args.ranks)
            env["CUDA_VISIBLE_DEVICES"] = ",".join(str(gpu) for gpu in mine)
        own = cores[lane * len(cores) // args.side_by_side : (lane + 1) * len(cores) // args.side_by_side]
        begin_s = time.monotonic()
        try:
            ran = subprocess.run(
                ["taskset", "--cpu-list", ",".join(map(str, own)), *command],
                env=env, timeout=DEADLINE_S, capture_output=True, text=True,
            )  # fmt: skip
            ended = f"exit code {ran.returncode}: {ran.stderr[-400:]}"
        except subprocess.TimeoutExpired:
            ended = f"not done after {DEADLINE_S} s"
        row: Row = {
            "planted_ranks": sorted(cell.late),
            "planted": cell.fault,
            "delay_ms": cell.delay_ms,
            "net": cell.net,
            "took_s": time.monotonic() - begin_s,
        }
        observations = sorted(Path(folder).glob("**/observation.json"))
        if not observations:
            return row | {"right": False, "failed": without_places(ended)}
        row |= judged(cell, json.loads(observations[0].read_text()), found)
        if args.keep and not row["right"]:
            packed(
                sorted(Path(folder).glob("**/trace-rank*.json.gz")),
                args.keep / f"{cell.key.replace(' ', '-')}.tar.xz",
            )
        return row


def packed(traces: Sequence[Path], archive: Path) -> None:
    """Keep these traces of one job's ranks, much of which is the same, in a third of their room."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:xz", preset=1) as kept_traces:
        for trace in traces:
            content = gzip.decompress(trace.read_bytes())
            entry = tarfile.TarInfo(trace.name.removesuffix(".gz"))
            entry.size = len(content)
            kept_traces.addfile(entry, io.BytesIO(content))


def judged(cell: Cell, observation: Row, diagnosis: Path) -> Row:
    ranks = (observation.get("trace") or {}).get("ranks")
    if not ranks:
        return {"right": False, "failed": "the ranks were not recorded"}
    named = ranks["stragglers"]
    findings = json.loads(diagnosis.read_text()).get("findings", []) if diagnosis.is_file() else []
    notes = [
        note for note in (*observation["notes"], *observation["trace"]["notes"]) if "other processes" in note
    ]
    said = next((each for each in findings if each["id"] == "rank-imbalance"), {})
    return {
        "named": named,
        "rank_right": {one["rank"] for one in named} == cell.late,
        "right": cell.is_right(named),
        "severity": said.get("severity"),
        "said": bool(named) and said.get("severity") in ("medium", "high"),
        "claim": said.get("claim"),
        "place": without_places((said.get("where") or {}).get("function", "")),
        "beside": notes[0] if notes else "",
        "ranks": ranks["ranks"],
    }


def table(rows: Sequence[Row]) -> str:
    lines = [f"{'planted':<28}{'rank':<18}{'phase':<20}right"]
    for row in sorted(rows, key=lambda row: (row["planted"], row["delay_ms"] or 0, row["net"])):
        dose = f" {row['delay_ms']} ms" if row["delay_ms"] else ""
        named = (
            "failed"
            if "failed" in row
            else f"{row['planted_ranks']} -> {[one['rank'] for one in row['named']]}"
        )
        phases = " ".join(phase for one in row.get("named", []) for phase in one["phases"]) or "-"
        right = "yes" if row["right"] else "no"
        lines.append(f"{row['planted'] + dose + ', ' + row['net']:<28}{named:<18}{phases:<20}{right}")
    faulty = [row for row in rows if row["planted"] != "none"]
    clean = [row for row in rows if row["planted"] == "none"]
    lines.append(
        f"right: {sum(row['right'] for row in faulty)} of {len(faulty)} (rank alone: "
        f"{sum(row.get('rank_right', False) for row in faulty)}); clean ones that name a rank: "
        f"{sum(bool(row.get('named')) for row in clean)} of {len(clean)}; findings that are more than low: "
        f"{sum(row.get('said', False) for row in faulty)} of {len(faulty)}, clean ones "
        f"{sum(row.get('said', False) for row in clean)} of {len(clean)}"
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--slow", type=int, default=1, help="ranks that are slow alike")
    parser.add_argument("--delays", type=int, nargs="*", default=[20, 50, 100, 200])
    parser.add_argument("--phases", nargs="*")
    parser.add_argument("--others", nargs="*", default=["length", "cores"])
    parser.add_argument("--net", nargs="*", choices=NETS, default=list(NETS))
    parser.add_argument("--clean", type=int, default=4)
    parser.add_argument("--spin", action="store_true", help="delays in forward and backward are the device's")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--side-by-side", type=int, default=1)
    parser.add_argument("--budget", type=float, default=float("inf"))
    parser.add_argument("--keep", type=Path, help="pack the traces of cells that are not right here")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    out = args.out or RESULTS / f"stragglers_{args.device}.json"
    done = result_file.read(out).get("rows", {})
    todo = [cell for cell in cells(args) if cell.key not in done]
    random.Random(args.seed).shuffle(todo)  # what a budget leaves out is left out by lot
    lanes: queue.SimpleQueue[int] = queue.SimpleQueue()
    for lane in range(args.side_by_side):
        lanes.put(lane)
    until_s = time.monotonic() + args.budget

    def run(cell: Cell) -> None:
        lane = lanes.get()
        try:
            if time.monotonic() < until_s:
                row = measured(cell, args, lane)
                with result_file.opened(out) as result:
                    result.update(device=args.device, ranks=args.ranks, spin=args.spin, seed=args.seed)
                    result.setdefault("rows", {})[cell.key] = row
                print(
                    cell.key,
                    row["planted_ranks"],
                    row.get("named", row.get("failed")),
                    row["right"],
                    flush=True,
                )
        finally:
            lanes.put(lane)

    with ThreadPoolExecutor(args.side_by_side) as pool:
        list(pool.map(run, todo))
    print(table(list(result_file.read(out).get("rows", {}).values())))


if __name__ == "__main__":
    main()
