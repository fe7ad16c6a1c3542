"""What an agent that comes to a running training, again and again, leaves in it: the training's output, its
weights and exit code, its steps, its interpreter, and its pace.

    python benchmarks/attachments.py --python 'WORDS' [--checkout PATH] [--kind workers|ranks] [--number 40]
        [--steps 4000] [--until 0.7] [--seed 1] [--delays] [--code WORD] [--out FILE]

`--python` starts a Python from 3.14 on that has torch, such as `chroot FOLDER /opt/v/bin/python`, and
`--checkout` is where that Python finds this checkout. A training of fixed length runs unattended once, and
its output is kept. It then runs again as often as it takes: `diagnose --pid --record` joins it at random
moments, and half of these dynotunes are killed at a random moment. Output, weights and exit code have to be
those of the unattended run. With `--until 1`, programs end while they are joined; else what is left in the
interpreter is looked at after the last attachment. torch's profiler keeps a thread of its own after its first
recording, which counts among the threads. Results grow over several calls, and `--code` names the commit of
each.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
import random
import re
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from dynotune.running import targets
from dynotune.schema.errors import DynotuneError
from lab import result_file
from lab.provenance import RESULTS

PROGRAM = "benchmarks/programs/attended.py"
ATTACH = """\
import sys
from dynotune.running import diagnose_running
from dynotune.schema.errors import DynotuneError
from dynotune.schema.facts import Unknown
try:
    found = diagnose_running(
        int(sys.argv[1]), look_s=1.0, with_stacks=False, record=True, delays=sys.argv[2] == "1"
    )
    inside = found.recorded
    print(f"unknown: {inside.reason}" if isinstance(inside, Unknown) else f"rung {found.rung}")
except DynotuneError as error:
    print(f"refused: {error.message}")
"""
LONGEST_WAIT_S, LONGEST_LIFE_S = 2.0, 15.0
LEFT_S = 60.0
RUN_FOLDER = re.compile(r"\d{8}-\d{6}-\d{3}-[0-9a-f]{6}")
LONG_S = 0.05
"""No step shall be longer because of an attachment, after its first second."""
PACE_S = 3.0
"""Seconds of steps before an attachment and after it whose pace is compared."""


class Training:
    """A training that runs, with its output in a file."""

    def __init__(self, chosen: argparse.Namespace, folder: Path) -> None:
        self._folder, self._ranks, self._steps = folder, 2 if chosen.kind == "ranks" else 1, chosen.steps
        inside = Path("/", *folder.parts[len(chosen.root.parts) :]) if chosen.root else folder
        program = [
            str(chosen.checkout / PROGRAM),
            "--steps",
            str(chosen.steps),
            "--side",
            str(inside / "side"),
        ]
        launcher = ["-m", "torch.distributed.run", "--nproc_per_node", "2"] if self._ranks == 2 else []
        workers = ["--workers", "1"] if self._ranks == 2 else []
        with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as error:
            self.child = subprocess.Popen(
                [*shlex.split(chosen.python), *launcher, *program, *workers],
                stdout=out,
                stderr=error,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def output(self) -> list[str]:
        return sorted((self._folder / "stdout").read_text().splitlines())

    def progress(self) -> float:
        """Return the share of its steps that the first rank has made, as far as it has said so."""
        rows = [line.split() for line in self.output() if line.startswith("0 ")]
        return max((int(row[1]) / self._steps for row in rows if row[1].isdigit()), default=0.0)

    def is_warm(self) -> bool:
        return sum(line.startswith("warm") for line in self.output()) == self._ranks

    def ended(self) -> dict[str, Any]:
        """Wait for its end; return what is compared, and what its interpreters tell of themselves."""
        code = self.child.wait()
        sides = [json.loads((self._folder / f"side.{rank}").read_text()) for rank in range(self._ranks)]
        errors = (self._folder / "stderr").read_text()
        return {
            "output": hashlib.sha256("\n".join(self.output()).encode()).hexdigest(),
            "stderr": [line for line in errors.splitlines() if "W1" not in line[:3]][:5],
            "exit_code": code,
            "num_steps": [len(side["ends_s"]) for side in sides],
            "differ": [sorted(side["differ"]) for side in sides],
            "ends_s": [side["ends_s"] for side in sides],
        }


def attached(pid: int, dice: random.Random, *, kills: bool, delays: bool) -> dict[str, Any]:
    """Join the training once; return how, when, and what came of it."""
    words = [sys.executable, "-c", ATTACH, str(pid), "1" if delays else "0"]
    begin_s = time.perf_counter()
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            out, error = child.communicate(timeout=dice.uniform(0, LONGEST_LIFE_S) if kills else 200)
            answer = out.strip() or error.strip()[-300:]
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGKILL)
            child.communicate()
            answer = "killed"
    return {"begin_s": begin_s, "end_s": time.perf_counter(), "left_s": left(pid), "answer": answer}


def left(pid: int) -> float | None:
    """Return when no process of the training maps a file of the agent any more; None if one still does."""
    until_s = time.perf_counter() + LEFT_S
    while time.perf_counter() < until_s:
        try:
            pids = targets.find(pid).pids
        except DynotuneError:
            return time.perf_counter()
        if not any(b"/joined/" in maps(one) or b"/dynotune-" in maps(one) for one in pids):
            return time.perf_counter()
        time.sleep(0.1)
    return None


def folders(root: Path) -> dict[str, list[str]]:
    """Return the run folders in the training's folder for temporary files, with what is in each. No other
    dynotune may join a program there meanwhile."""
    found = [path for path in (root / "tmp").iterdir() if RUN_FOLDER.fullmatch(path.name)]
    return {path.name: sorted(inside.name for inside in path.iterdir()) for path in found}


def maps(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/maps").read_bytes()
    except OSError:
        return b""


def paces(attachment: dict[str, Any], ends_s: list[float]) -> dict[str, Any]:
    """Return the pace after an attachment over that before it, the longest steps meanwhile and before, and
    how many of how many steps were longer than `LONG_S`."""

    def within(begin_s: float, end_s: float) -> list[float]:
        inside = [at for at in ends_s if begin_s <= at < end_s]
        return [later - earlier for earlier, later in itertools.pairwise(inside)]

    begin_s, end_s = attachment["begin_s"], attachment["left_s"] or attachment["end_s"]
    before, after = within(begin_s - PACE_S, begin_s), within(end_s, end_s + PACE_S)
    later = within(begin_s + 1.0, end_s)
    full = len(before) > 20 and len(after) > 20 and ends_s[-1] > end_s + PACE_S
    return {
        "pace": statistics.fmean(after) / statistics.fmean(before) if full else None,
        "longest_inside_s": max(within(begin_s, end_s), default=None),
        "longest_later_s": max(later, default=None),
        "long_later": [sum(step_s > LONG_S for step_s in later), len(later)],
        "long_before": [sum(step_s > LONG_S for step_s in before), len(before)],
        "longest_before_s": max(before, default=None),
    }


def session(chosen: argparse.Namespace, dice: random.Random, num: int) -> dict[str, Any]:
    """Run the training once, joined up to `num` times."""
    root = chosen.root or Path("/")
    before = folders(root)
    with tempfile.TemporaryDirectory(dir=chosen.root and chosen.root / "tmp") as name:
        training = Training(chosen, Path(name))
        while not training.is_warm():
            time.sleep(0.2)
        rows: list[dict[str, Any]] = []
        while training.child.poll() is None and len(rows) < num and training.progress() < chosen.until:
            time.sleep(dice.uniform(0, LONGEST_WAIT_S))
            if training.child.poll() is None:
                kills = dice.random() < 0.5
                rows.append(attached(training.child.pid, dice, kills=kills, delays=chosen.delays))
        found = training.ended()
    ends_s = found.pop("ends_s")
    for row in rows:
        # What an agent leaves can be told where it had left before the training's last step.
        row["at_end"] = row["begin_s"] < ends_s[0][-1] <= (row["left_s"] or math.inf)
        row.update(paces(row, ends_s[0]))
        row["seconds"] = row.pop("end_s") - row["begin_s"]
        row["has_left"] = row.pop("left_s") is not None
        del row["begin_s"]
    folders_left = {name: inside for name, inside in folders(root).items() if name not in before}
    return {**found, "code": chosen.code, "attachments": rows, "folders_left": folders_left}


def versions(python: str) -> dict[str, str]:
    """Return the versions of the Python that trains, and of its torch."""
    code = "import json, platform, torch; print(json.dumps([platform.python_version(), torch.__version__]))"
    found = subprocess.run([*shlex.split(python), "-c", code], capture_output=True, check=True).stdout
    return dict(zip(("python", "torch"), json.loads(found), strict=True))


def summaries(result: dict[str, Any]) -> dict[str, Any]:
    """Return what all sessions say together, and those of each code."""
    codes = dict.fromkeys(one["code"] for one in result["sessions"])
    by_code = {code: [one for one in result["sessions"] if one["code"] == code] for code in codes}
    return {
        "summary": summary(result["sessions"], result["unattended"]),
        "by_code": {code: summary(sessions, result["unattended"]) for code, sessions in by_code.items()},
    }


def summary(sessions: list[dict[str, Any]], unattended: dict[str, Any]) -> dict[str, Any]:
    rows = [row for one in sessions for row in one["attachments"]]
    ratios = [row["pace"] for row in rows if row["pace"] is not None]
    same = ("output", "exit_code", "num_steps")
    found: dict[str, Any] = {
        "attachments": len(rows),
        "killed": sum(row["answer"] == "killed" for row in rows),
        "answered": sum(row["answer"] == "rung 2" for row in rows),
        "others": sorted({row["answer"] for row in rows if row["answer"] not in ("killed", "rung 2")}),
        "not_left": sum(not row["has_left"] for row in rows),
        "sessions": len(sessions),
        "sessions_as_unattended": sum(
            all(one[name] == unattended[name] for name in same) for one in sessions
        ),
        "joined_at_the_end": sum(row["at_end"] for row in rows),
        "left_in_interpreters": sorted(
            {
                name
                for one in sessions
                if not any(row["at_end"] for row in one["attachments"])
                for differ in one["differ"]
                for name in differ
            }
        ),
        "folders_left": [inside for one in sessions for inside in one["folders_left"].values()],
        "longest_step_inside_s": max((row["longest_inside_s"] or 0 for row in rows), default=None),
        "longest_step_before_s": max((row["longest_before_s"] or 0 for row in rows), default=None),
        "long_steps": {
            name: [sum(row[name][place] for row in rows) for place in (0, 1)]
            for name in ("long_before", "long_later")
        },
    }
    if len(ratios) > 2:
        half = 1.96 * statistics.stdev(ratios) / len(ratios) ** 0.5
        found["pace_after_over_before"] = statistics.fmean(ratios)
        found["pace_interval"] = [statistics.fmean(ratios) - half, statistics.fmean(ratios) + half]
        found["pace_median"] = statistics.median(ratios)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", required=True)
    parser.add_argument("--checkout", type=Path, default=Path(__file__).resolve().parents[1])
    parser.add_argument("--root", type=Path, help="root folder of that Python, if it has another")
    parser.add_argument("--kind", choices=("workers", "ranks"), default="workers")
    parser.add_argument("--number", type=int, default=40)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--delays", action="store_true")
    parser.add_argument("--code", default="", help="the commit whose agent comes")
    parser.add_argument("--until", type=float, default=0.7, help="share of steps after which none joins")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    out = chosen.out or RESULTS / f"attachments_{chosen.kind}.json"
    done = result_file.read(out)
    if "unattended" not in done:
        with tempfile.TemporaryDirectory(dir=chosen.root and chosen.root / "tmp") as name:
            found = Training(chosen, Path(name)).ended()
            del found["ends_s"]
        with result_file.opened(out) as result:
            result["target"] = versions(chosen.python)
            result["unattended"], result["steps"], result["sessions"] = found, chosen.steps, []
            done = dict(result)
    chosen.steps = done["steps"]
    made = sum(len(one["attachments"]) for one in done["sessions"])
    dice = random.Random(chosen.seed + made)
    while made < chosen.number:
        row = session(chosen, dice, chosen.number - made)
        made += len(row["attachments"])
        with result_file.opened(out) as result:
            result["sessions"].append(row)
            result.update(summaries(result))
        print(made, [one["answer"] for one in row["attachments"]], *row["differ"], flush=True)
        if not row["attachments"]:
            break


if __name__ == "__main__":
    main()
