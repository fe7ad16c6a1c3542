"""Whether the account of a whole run sums to the wall clock, and how much of published programs it explains.

    python -m benchmarks.accounted --sources FOLDER [--work FOLDER] [--only NAME] [--limit-s S] [--out FILE]
    python -m benchmarks.accounted show [--out FILE]

The programs of lab/field run as published, with options that make them short and small on a CPU. A shell
around each command takes the time of the command alone, by its own clock. A program that is not over after
`--limit-s` is interrupted, as by Ctrl-C. `show` prints a table of the results. Results grow over several
calls.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from dynotune.schema import document
from dynotune.schema.account import ACTIVITIES, RunAccount
from lab.field.programs import published
from lab.provenance import RESULTS, without_places
from lab.result_file import opened, read
from lab.tuning.programs import folder_of

SHORT = {
    "nanogpt-eager": "--max_iters=300 --eval_interval=100",
    "word-language-model": "--epochs 1 --log-interval 20 --emsize 16 --nhid 16",
    "dcgan": "--niter 1",
    "timm": "--epochs 1",
    "mingpt-adder": "--trainer.max_iters=600 --trainer.batch_size=4",
    "makemore": "--max-steps 600 --n-layer 2 --n-embd 32 --n-embd2 32 --n-head 2",
    "open-clip": "--train-num-samples 400 --epochs 1",
    "unet": "--epochs 1",
    "mnist": "--epochs 1",
    "mnist-rnn": "--epochs 1",
    "vae": "--epochs 1",
    "siamese": "--epochs 1",
    "super-resolution": "--nEpochs 2",
    "gat": "--epochs 60",
    "fast-neural-style": "--epochs 1",
}
"""Options that make a program end, by its name."""
TIMED = 'begin=$EPOCHREALTIME; "$@"; code=$?; echo "$begin $EPOCHREALTIME" > "$TIMED"; exit $code'
OWN = ("own", "model_run")
"""Activities that name a place of the program, not a kind of work."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("run", "show"), default="run")
    parser.add_argument("--sources", type=Path, default=Path("field_sources"), metavar="FOLDER")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "dynotune-accounted")
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--limit-s", type=float, default=90.0)
    parser.add_argument("--out", type=Path, default=RESULTS / "accounts_cpu.json")
    given = parser.parse_args()
    if given.what == "run":
        run(given)
    show(read(given.out))


def run(given: argparse.Namespace) -> None:
    for program in published(given.sources, "cpu"):
        if program.name not in (given.only or SHORT):
            continue
        if missing := program.missing():
            print(f"{program.name}: left out, without {', '.join(missing)}", flush=True)
            continue
        folder = folder_of(program, given.work.absolute() / "cpu")
        words = [*program.command("cpu"), *SHORT.get(program.name, "").split()]
        row = accounted(words, folder, {**os.environ, **program.environment()}, given.limit_s)
        with opened(given.out) as result:
            result["command"] = (
                "python -m benchmarks.accounted"  # its folders say nothing of what was measured
            )
            result.setdefault("programs", {})[program.name] = {"limit_s": given.limit_s, **row}
        print(f"{program.name}: {row['wall_s']:.1f} s", flush=True)


def accounted(words: list[str], folder: Path, env: dict[str, str], limit_s: float) -> dict[str, Any]:
    """Run a command with an account; return its account beside the shell's clock."""
    with tempfile.TemporaryDirectory() as runs:
        timed = Path(runs) / "timed"
        shell = ["bash", "-c", TIMED, "bash", "timeout", "-s", "INT", f"{limit_s:g}", *words]
        ours = [sys.executable, "-m", "dynotune", "run", "--account", "--run-dir", runs, "--", *shell]
        done = subprocess.run(
            ours, cwd=folder, env={**env, "TIMED": str(timed)}, capture_output=True, text=True
        )
        try:
            (kept,) = Path(runs).glob("*/account.json")
        except ValueError:
            raise SystemExit(f"{words} was not accounted for: {done.stderr[-2000:]}") from None
        account = document.read(kept, RunAccount)
        begin_s, end_s = map(float, timed.read_text().split())
    return _row(account, end_s - begin_s, words)


def _row(account: RunAccount, wall_s: float, words: list[str]) -> dict[str, Any]:
    by_activity: Counter[str] = Counter()
    for row in account.rows:
        by_activity[ACTIVITIES[row.activity]] += row.took_s  # type: ignore[assignment]
    return {
        "words": without_places(" ".join(Path(word).name if "/" in word else word for word in words)),
        "wall_s": wall_s,
        "account_wall_s": account.wall_s,
        "sum_s": sum(row.took_s for row in account.rows),
        "exit_code": account.exit_code,
        "num_steps": account.num_steps,
        "parts_s": {part: account.part_s(part) for part in ("start", "steps", "between", "end")},
        "unexplained_s": account.part_s("unexplained"),
        "own_lines_s": sum(row.took_s for row in account.rows if row.activity in OWN),
        "activities_s": dict(by_activity.most_common()),
        "unexplained_stack": [without_places(frame) for frame in account.unexplained_stack],
    }


def show(result: dict[str, Any]) -> None:
    """Print the table of the guide."""
    columns = ("run, s", "steps", "start", "in steps", "between", "after", "own lines", "unexplained", "sum")
    print(f"| program | {' | '.join(columns)} |")
    print("| --- |" + " ---: |" * len(columns))
    for name, row in result.get("programs", {}).items():
        whole_s = row["account_wall_s"]
        shares = [f"{row['parts_s'][part] / whole_s:.0%}" for part in ("start", "steps", "between", "end")]
        own, not_told = (f"{row[key] / whole_s:.1%}" for key in ("own_lines_s", "unexplained_s"))
        error = row["sum_s"] / row["wall_s"] - 1
        cells = [f"{row['wall_s']:.1f}", f"{row['num_steps']:,}", *shares, own, not_told, f"{error:+.1%}"]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    if shutil.which("bash") is None:
        raise SystemExit("This needs bash.")
    main()
