"""Seconds that measured starts of a command take, under an old source tree and a new one, in turn on one
machine.

    python benchmarks/starts.py --old FOLDER [--new FOLDER] [--small] [--only PROGRAM] [--budget 330]
        [--out FILE]

Each FOLDER holds the package `dynotune`. Three programs are started: a GPT trainer, examples/train_images.py
and a Transformers Trainer. PYTHONDONTWRITEBYTECODE=1 is set, as in many containers, and both trees begin
without bytecode.

- `dynotune diagnose`: seconds to its answer, and the number of starts that it took.
- `dynotune compare`: seconds of its first start and of its later, warm ones. It is interrupted once it has
  made enough warm starts: its verdict is not needed.

For each start: seconds from the launch to the end of the first step, and to the begin of the timed window.
Every measurement has run and state folders of its own, so the trees share no cache. The result is written
after each measurement, and what is in it already is not measured again. A failed measurement is made again.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shlex
import shutil
import signal
import site
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab import result_file
from lab.provenance import RESULTS, without_places

BENCHMARKS = Path(__file__).resolve().parent
ROOT = BENCHMARKS.parent
NUM_PHOTOGRAPHS = 256
WARM_STARTS = 2
"""`compare` is interrupted after this many warm starts with a window."""
DEADLINE_S = 240
POLL_S = 0.1
GRACE_S = 30
TREES = ("old", "new")
# The most that new may be of old: an answer in one start, and starts 1.8 times faster.
MOST_OF_OLD = {"answer_s": 0.65, "warm_window_s": 1 / 1.8}

Row = dict[str, Any]


@dataclass(frozen=True)
class Program:
    """A command that trains until it is ended.

    Args:
        file: relative to the root of this checkout.
        arguments, small: for a GPU, and for a CPU.
        needs: packages without which it is skipped.
        prepare: makes what it needs in its folder.
    """

    file: str
    arguments: tuple[str, ...]
    small: tuple[str, ...]
    needs: tuple[str, ...] = ("torch",)
    prepare: Callable[[Path], None] | None = None

    def missing(self) -> list[str]:
        """Packages that are not here."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]


def photographs(folder: Path) -> None:
    """Four classes of pictures, 320 by 240."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    for number in range(NUM_PHOTOGRAPHS):
        of_class = folder / "photographs" / str(number % 4)
        of_class.mkdir(parents=True, exist_ok=True)
        coarse = rng.integers(0, 255, (12, 16, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((320, 240), Image.Resampling.BICUBIC).save(
            of_class / f"{number:03}.jpg"
        )


def trainer(batch_size: int) -> str:
    """Arguments of the Transformers Trainer, as its driver takes them."""
    return json.dumps({"max_steps": 100_000, "per_device_train_batch_size": batch_size, "disable_tqdm": True})


PROGRAMS = {
    "gpt": Program(
        "benchmarks/programs/train_gpt.py",
        (),
        ("--layers", "2", "--heads", "2", "--width", "64", "--tokens", "64", "--batch-size", "8"),
    ),
    "images": Program(
        "examples/train_images.py",
        ("photographs", "--epochs", "1000"),
        ("photographs", "--epochs", "1000", "--size", "48", "--width", "8"),
        needs=("torch", "PIL"),
        prepare=photographs,
    ),
    "transformers": Program(
        "lab/drivers/train_gpt2.py",
        ("4", "256", "128", trainer(8)),
        ("2", "64", "32", trainer(4)),
        needs=("torch", "transformers", "accelerate"),
    ),
}
OPTIONS = {
    "diagnose": ["--no-lock"],
    "compare": ["env.DYNOTUNE_NOTHING=1", "--steps", "20", "--pairs", "2", "--no-lock"],
}


class Bench:
    """Copies of the two trees, and a folder for each program, below `scratch`."""

    def __init__(self, scratch: Path, trees: Mapping[str, Path], *, small: bool) -> None:
        self._scratch, self._small = scratch, small
        self._trees = {name: scratch / "trees" / name for name in trees}
        for name, tree in trees.items():
            # Bytecode of one tree, left by an earlier use of it, would make the two unlike.
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(tree / "dynotune", self._trees[name] / "dynotune", ignore=ignore)

    def read_files(self) -> None:
        """Import once what the programs import: the first to read it from the disk would pay for all."""
        code = "import torch; torch.zeros(1, device='cuda' if torch.cuda.is_available() else 'cpu')"
        more = "\ntry:\n from transformers import GPT2LMHeadModel, Trainer\nexcept ImportError: pass"
        subprocess.run(
            [sys.executable, "-c", code + more], env=self._environment("new", self._scratch), check=True
        )

    def measure(self, tree: str, name: str, action: str, key: str) -> Row:
        """Run `dynotune ACTION` of `tree` on the program, and read what it recorded."""
        folder = self._scratch / key.replace("/", "-")
        runs, answer = folder / "runs", folder / "answer.json"
        folder.mkdir()
        options = [*OPTIONS[action], "--json", str(answer), "--run-dir", str(runs)]
        command = self._command(name)
        words = [sys.executable, "-m", "dynotune", action, *options, "--", *command]
        begin_s = time.monotonic()
        with (folder / "stdout").open("w") as stdout, (folder / "stderr").open("w") as stderr:
            process = subprocess.Popen(
                words,
                env=self._environment(tree, folder),
                cwd=self._folder(name),
                stdout=stdout,
                stderr=stderr,
            )
            end = wait(process, begin_s + DEADLINE_S, lambda: action == "compare" and has_enough(runs))
        row: Row = {
            "command": self._as_typed(["dynotune", action, *OPTIONS[action], "--", *command]),
            "wall_s": time.monotonic() - begin_s,
            "end": end,
            "bytecode_beside": have_bytecode(),
            "num_starts": len(
                {file.parent for which in ("run.json", "plan.json") for file in runs.rglob(which)}
            ),
            "starts": starts(runs),
        }
        if end not in ("0", "enough"):
            row["failed"] = self._as_typed([(folder / "stderr").read_text()[-3000:]], quote=False)
        elif action == "diagnose":
            row["answer_s"] = row["wall_s"]
            row["findings"] = [finding["id"] for finding in json.loads(answer.read_text())["findings"]]
        shutil.rmtree(folder, ignore_errors=True)
        return row

    def _folder(self, name: str) -> Path:
        """The folder that the program runs in, made with what it needs by the first to ask for it."""
        folder = self._scratch / "programs" / name
        if not folder.is_dir():
            folder.mkdir(parents=True)
            if prepare := PROGRAMS[name].prepare:
                prepare(folder)
        return folder

    def _command(self, name: str) -> list[str]:
        program = PROGRAMS[name]
        return [
            sys.executable,
            str(ROOT / program.file),
            *(program.small if self._small else program.arguments),
        ]

    def _environment(self, tree: str, folder: Path) -> dict[str, str]:
        """Ours, with that tree's package, without bytecode, and with a home below `folder`."""
        others = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if not is_tree(entry)]
        home = folder / "home"
        homes = {
            f"XDG_{what}_HOME": str(home / what.lower()) for what in ("STATE", "CACHE", "CONFIG", "DATA")
        }
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPYCACHEPREFIX"}
        return {
            **env,
            **homes,
            "HOME": str(home),
            "PYTHONUSERBASE": site.getuserbase(),
            "PYTHONPATH": os.pathsep.join([str(self._trees[tree]), *filter(None, others)]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HF_HUB_OFFLINE": "1",
            "COLUMNS": "110",
        }

    def _as_typed(self, words: Sequence[str], *, quote: bool = True) -> str:
        text = shlex.join(words) if quote else " ".join(words)
        return without_places(text.replace(str(self._scratch), ".").replace(sys.executable, "python"))


def is_tree(entry: str) -> bool:
    return bool(entry) and (Path(entry) / "dynotune").is_dir()


def wait(process: subprocess.Popen[bytes], deadline_s: float, enough: Callable[[], bool]) -> str:
    """Wait until the process ends, or interrupt it; its exit code, `enough` or `deadline`."""
    while True:
        try:
            return str(process.wait(POLL_S))
        except subprocess.TimeoutExpired:
            why = "enough" if enough() else "deadline" if time.monotonic() > deadline_s else None
        if why is not None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            return why


def has_enough(runs: Path) -> bool:
    return len([start for start in starts(runs)[1:] if start["window_s"] is not None]) >= WARM_STARTS


def starts(runs: Path) -> list[Row]:
    """What the records say of each start, in the order of launches."""
    found = []
    for file in runs.rglob("run.json"):
        try:
            found.append(json.loads(file.read_text()))
        except ValueError:
            continue  # it is just being written
    return [start(run) for run in sorted(found, key=launched_s)]


def launched_s(run: Row) -> float:
    return float(run.get("launched_s") or 0.0)


def start(run: Row) -> Row:
    """Seconds from a launch to what followed, by records of version 1 or 2; None where it did not follow.

    Every clock is CLOCK_MONOTONIC.
    """
    process = max(run.get("processes", []), key=lambda process: process.get("num_steps") or 0, default={})
    windows = process.get("windows") or [process.get("window")]
    window = min(filter(None, windows), key=lambda window: float(window["begin_s"]), default=None)
    traces = process.get("traces") or [process.get("trace")]
    trace_begins = [trace["begin_s"] for trace in traces if trace and trace.get("begin_s") is not None]
    launched = launched_s(run)
    return {
        "purpose": run.get("purpose"),
        "first_step_s": process.get("time_to_first_step_s", process.get("first_step_s")),
        "window_s": float(window["begin_s"]) - launched if window else None,
        "warmup_steps": window.get("first_step") if window else None,
        "trace_s": min(trace_begins) - launched if trace_begins else None,
        "wall_s": run.get("wall_s"),
    }


def table(measurements: Mapping[str, Row]) -> list[Row]:
    """A row for each quantity of each program: the median of its values, by tree."""
    rows = []
    for name in PROGRAMS:
        own = {
            key: row
            for key, row in measurements.items()
            if key.startswith(f"{name}/") and "failed" not in row
        }
        diagnoses = {
            tree: [row for key, row in own.items() if is_of(key, "diagnose", tree)] for tree in TREES
        }
        both = {tree: [row for key, row in own.items() if key.endswith(f"/{tree}")] for tree in TREES}
        compares = {tree: [row for key, row in own.items() if is_of(key, "compare", tree)] for tree in TREES}
        quantities: dict[str, Mapping[str, Iterable[Any]]] = {
            "answer_s": {tree: [row["answer_s"] for row in diagnoses[tree]] for tree in TREES},
            "num_starts": {tree: [row["num_starts"] for row in diagnoses[tree]] for tree in TREES},
        }
        for field in ("first_step_s", "window_s"):
            quantities[f"first_{field}"] = {
                tree: [s[field] for r in both[tree] for s in r["starts"][:1]] for tree in TREES
            }
            quantities[f"warm_{field}"] = {
                tree: [s[field] for r in compares[tree] for s in r["starts"][1:]] for tree in TREES
            }
        for quantity, values in quantities.items():
            known = {tree: [value for value in values[tree] if value is not None] for tree in TREES}
            medians = {tree: statistics.median(known[tree]) if known[tree] else None for tree in TREES}
            old, new = medians["old"], medians["new"]
            if old is None and new is None:
                continue
            ratio = new / old if old and new is not None else None
            bound = MOST_OF_OLD.get(quantity)
            kept_bound = ratio <= bound if ratio is not None and bound is not None else None
            row = {"program": name, "quantity": quantity, "old": old, "new": new, "new_of_old": ratio}
            rows.append({**row, "values": known, "bound": bound, "within_bound": kept_bound})
    return rows


def is_of(key: str, action: str, tree: str) -> bool:
    _, its_action, _, its_tree = key.split("/")
    return (its_action, its_tree) == (action, tree)


WORDS = {
    "answer_s": "diagnose: seconds to its answer",
    "num_starts": "diagnose: starts that it took",
    "first_first_step_s": "first start: launch to first step",
    "first_window_s": "first start: launch to window",
    "warm_first_step_s": "warm start: launch to first step",
    "warm_window_s": "warm start: launch to window",
}


def show(measurements: Mapping[str, Row]) -> None:
    print(
        f"{'program':<14}{'median of':<35}{'old':>8}{'new':>8}{'new/old':>9}{'old/new':>9}  bound", flush=True
    )
    for row in table(measurements):
        old, new, ratio = row["old"], row["new"], row["new_of_old"]
        shown = [f"{'?' if value is None else f'{value:.2f}':>8}" for value in (old, new)]
        ratios = f"{ratio:>9.2f}{1 / ratio:>9.2f}" if ratio else f"{'?':>9}{'?':>9}"
        verdict = {True: "kept", False: "NOT KEPT", None: ""}[row["within_bound"]]
        bound = f"  <= {row['bound']:.2f} {verdict}" if row["bound"] else ""
        print(f"{row['program']:<14}{WORDS[row['quantity']]:<35}{''.join(shown)}{ratios}{bound}")
    for key, row in measurements.items():
        if "failed" in row:
            print(f"{key} failed ({row['end']}): {row['failed'].strip()[-300:]}")


def plan(only: Sequence[str], repeats: Mapping[str, int]) -> list[list[tuple[str, str, str, str]]]:
    """(tree, program, action, key) of all measurements in order: pairs of trees, whose order alternates."""
    names = []
    for name, program in PROGRAMS.items():
        if only and name not in only:
            continue
        if missing := program.missing():
            print(f"{name}: skipped, without {', '.join(missing)}")
            continue
        names.append(name)
    pairs = []
    for number in range(max(repeats.values())):
        for action in OPTIONS:
            for name in names if number < repeats[action] else []:
                turn = number + list(OPTIONS).index(action) + names.index(name)
                order = TREES if turn % 2 == 0 else TREES[::-1]
                pairs.append([(tree, name, action, f"{name}/{action}/{number + 1}/{tree}") for tree in order])
    return pairs


def have_bytecode() -> list[str]:
    """Packages, among those that take longest to import, that have bytecode beside them."""
    specs = {name: importlib.util.find_spec(name) for name in ("torch", "transformers", "numpy")}
    origins = {
        name: Path(spec.origin)
        for name, spec in specs.items()
        if spec is not None and spec.origin is not None
    }
    # Not `cache_from_source`: this process may have another prefix of bytecode than the programs.
    file = f"__init__.{sys.implementation.cache_tag}.pyc"
    return [name for name, origin in origins.items() if (origin.parent / "__pycache__" / file).is_file()]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--old", type=Path, required=True, help="Folder that holds the package dynotune.")
    parser.add_argument(
        "--new", type=Path, default=ROOT / "src", help="Likewise; src of this checkout, without."
    )
    parser.add_argument(
        "--names", nargs=2, default=TREES, metavar=("OLD", "NEW"), help="For the result: commits."
    )
    parser.add_argument("--small", action="store_true", help="Sizes for a CPU.")
    parser.add_argument("--only", action="append", choices=list(PROGRAMS), default=[])
    parser.add_argument(
        "--repeats", type=int, default=2, help="Of diagnose; compare makes several starts at once."
    )
    parser.add_argument("--compare-repeats", type=int, default=1)
    parser.add_argument(
        "--budget", type=float, default=float("inf"), help="Seconds; begin nothing that takes longer."
    )
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    begin_s = time.monotonic()
    trees = {"old": args.old.resolve(), "new": args.new.resolve()}
    for name, tree in trees.items():
        if not is_tree(str(tree)):
            parser.error(f"--{name} {tree}: there is no package dynotune")
    out = args.out or RESULTS / f"starts_{'cpu' if args.small else 'cuda'}.json"
    setup = {"trees": dict(zip(TREES, args.names, strict=True)), "small": args.small}
    with result_file.opened(out) as result:
        if result.setdefault("setup", setup) != setup:
            raise SystemExit(
                f"{out} was made with another setup: {result['setup']}. Name another file with --out."
            )
        result["command"] = without_places(result["command"])
        done = result.setdefault("measurements", {})
    to_do = [
        [each for each in pair if "failed" in done.get(each[-1], {"failed": ""})]
        for pair in plan(args.only, {"diagnose": args.repeats, "compare": args.compare_repeats})
    ]
    longest_s: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(Path(scratch), trees, small=args.small)
        if any(to_do):
            bench.read_files()
            if names := have_bytecode():
                print(
                    f"{', '.join(names)}: bytecode lies beside the package, so PYTHONDONTWRITEBYTECODE "
                    "costs less"
                )
        for pair in filter(None, to_do):
            pair_begin_s, action = time.monotonic(), pair[0][2]
            if pair_begin_s - begin_s + longest_s.get(action, 0.0) > args.budget:
                print(f"{pair[0][-1]} and what follows: not begun, the budget is used up")
                break
            for tree, name, _, key in pair:
                row = bench.measure(tree, name, action, key)
                with result_file.opened(out) as result:
                    result["measurements"][key] = row
                    result["rows"] = table(result["measurements"])
                elapsed_s = time.monotonic() - begin_s
                print(f"{elapsed_s:6.1f} s  {key}: {row['wall_s']:.1f} s, end {row['end']}", flush=True)
            longest_s[action] = max(longest_s.get(action, 0.0), time.monotonic() - pair_begin_s)
    show(result_file.read(out)["measurements"])


if __name__ == "__main__":
    main()
