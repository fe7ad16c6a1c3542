"""The parts that `benchmarks/tuning.py` is made of: one command each, and what is kept of what it says."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.provenance import without_places
from lab.tuning.programs import Program, folder_of, spelled

Row = dict[str, Any]
KINDS = ("tune", "verify", "informed", "autotune", "autotune-pairs", "slowai", "slowai-pairs")
PEERS = ("autotune", "slowai", "train-doctor", "traceml", "aitune")
DYNOTUNE = [sys.executable, "-m", "dynotune"]
PAIRS = {"verify": 8, "hand": 6, "informed": 6, "autotune-pairs": 4, "slowai-pairs": 4}
"""At most: what is clear after the first look, at 4 pairs, takes no more."""
FIRST_LOOK = 4
LEAST_PAIRS = 3
SLACK = 3.0
"""Of an estimate, where there is time: the other arm may be slower, or compile."""
PILOT_RUNS = 3.0
"""Of both arms of a comparison: first runs are longer, by cold caches and compilation."""
PEER_S = {"cuda": {"autotune": 120, "slowai": 150}, "cpu": {"autotune": 25, "slowai": 240}}
GRACE_S = 45.0
HEARD_EVERY_S = 0.25
AS_WRITTEN = ""


@dataclass(frozen=True)
class Setup:
    """Where and how parts are run.

    Args:
        keep: folder for what a study leaves behind, and what it said when; None to keep nothing.
        tune_s, blocks: budget of each tune, runs of each arm of a table, in place of the usual ones.
        pairs_s: most seconds of each comparison in fresh pairs, or as many as three pairs take; None for as
            long as there is time.
    """

    device: str
    work: Path
    keep: Path | None = None
    lock: bool = True
    tune_s: float | None = None
    blocks: int | None = None
    pairs_s: float | None = None


# What is to be done


def estimate_s(kind: str, program: Program, rows: Mapping[str, Row], setup: Setup) -> float:
    """Most seconds that a part takes: of what it is given, or of the longest runs that it may make."""
    if kind in PEERS:
        return peer_budget_s(kind, program, setup) + (30 if kind == "autotune" else 0)
    if kind == "tune":
        return tune_budget_s(program, setup) + 1.5 * run_s(program, rows, setup.device)
    return _pairs_s(PAIRS[kind], program, rows, setup)


def least_s(kind: str, program: Program, rows: Mapping[str, Row], setup: Setup) -> float:
    """Fewest seconds in which a part can answer: a comparison by its first look."""
    if kind in PAIRS:
        return _pairs_s(FIRST_LOOK, program, rows, setup)
    return estimate_s(kind, program, rows, setup)


def _pairs_s(num_pairs: int, program: Program, rows: Mapping[str, Row], setup: Setup) -> float:
    wanted_s = (2 * num_pairs + PILOT_RUNS) * run_s(program, rows, setup.device)
    return min(wanted_s, _longest_s(program, rows, setup))


def _longest_s(program: Program, rows: Mapping[str, Row], setup: Setup) -> float:
    """Of a comparison in fresh pairs; in less than three pairs take it begins none."""
    if setup.pairs_s is None:
        return math.inf
    return max(setup.pairs_s, (2 * LEAST_PAIRS + PILOT_RUNS) * run_s(program, rows, setup.device))


def tune_budget_s(program: Program, setup: Setup) -> float:
    return setup.tune_s or program.tune_s[setup.device]


def peer_budget_s(tool: str, program: Program, setup: Setup) -> float:
    """As much as a tune has, but for the two that are asked for less."""
    return float(PEER_S[setup.device].get(tool, tune_budget_s(program, setup)))


def run_s(program: Program, rows: Mapping[str, Row], device: str) -> float:
    """Of one run, as it was measured, else as it was guessed."""
    measured = rows.get("tune", {}).get("run_s")
    return float(measured) if measured else program.run_s[device]


def needs_no_run(kind: str, program: Program, rows: Mapping[str, Row]) -> Row | None:
    """What a part says without any run; None where it has to run. Raises KeyError where what it needs is
    missing."""
    if kind in PEERS and kind in program.cannot:
        return {"cannot": program.cannot[kind]}
    if kind == "hand":
        return {"as": "written"} if program.hand == AS_WRITTEN else None
    if kind == "tune" or kind in PEERS:
        return None
    recipe = recipe_of(rows)
    if kind == "verify":
        return {"outcome": "nothing to verify"} if not recipe else None
    against = program.hand if kind == "informed" else chosen(kind, rows)
    if against is None:
        return {"cannot": "it gave no answer"}
    if against == AS_WRITTEN:
        return {"as": "written"}
    for other in ("informed", "autotune-pairs"):
        if other != kind and rows.get(other, {}).get("words") == against and "pairs" in rows[other]:
            return {"as": other}
    return None


def chosen(kind: str, rows: Mapping[str, Row]) -> str | None:
    """What the tool of this part's pairs chose, in words of TUNED_AS; None where it gave no answer."""
    return rows[kind.removesuffix("-pairs")].get("chosen")


def recipe_of(rows: Mapping[str, Row]) -> list[str]:
    """Raises KeyError where there is no finished tune."""
    return list(rows["tune"]["recipe"])


def is_done(row: Row | None) -> bool:
    """What failed is tried again."""
    return row is not None and "failed" not in row


# Doing it


def do(kind: str, program: Program, rows: Mapping[str, Row], setup: Setup, left_s: float = math.inf) -> Row:
    """Run a part; what is kept of it, with `failed` where it gave no answer.

    Args:
        left_s: a comparison may take longer than its estimate, though not longer than this.
    """
    began_s = time.monotonic()
    # The pictures are made in no one's time.
    folder = folder_of(program, setup.work)
    planned_s = estimate_s(kind, program, rows, setup)
    longest_s = min(SLACK * planned_s, left_s, _longest_s(program, rows, setup))
    limit_s = (longest_s if kind in PAIRS else planned_s) + GRACE_S
    if kind in PEERS:
        row = _peer(kind, program, folder, setup, limit_s)
    elif kind == "tune":
        row = _tune(program, folder, setup, limit_s)
    elif kind == "verify":
        row = _verify(program, folder, rows, setup, limit_s)
    elif kind == "hand":
        row = _hand(kind, program, folder, setup, limit_s)
    else:
        row = _against(kind, program, folder, rows, setup, limit_s)
    return {**row, "wall_s": round(time.monotonic() - began_s, 1)}


def _tune(program: Program, folder: Path, setup: Setup, limit_s: float) -> Row:
    words = ["tune", "--budget", f"{tune_budget_s(program, setup):.0f}s"]
    return tuned(words, program, folder, setup, limit_s)


def tuned(
    words: Sequence[str], program: Program, folder: Path, setup: Setup, limit_s: float, name: str = ""
) -> Row:
    """What `dynotune tune` finds; `words` begins with `tune`."""
    with tempfile.TemporaryDirectory() as there:
        recipe, study, report = (Path(there) / file for file in ("recipe.toml", "study.json", "report.html"))
        ours = [*words, "--output", str(recipe), "--json", str(study), "--report", str(report)]
        records = _records(setup, program)
        # What an earlier try left behind would help this one.
        shutil.rmtree(records, ignore_errors=True)
        moments = Moments(records)
        ran = _dynotune(ours, program, folder, setup, limit_s, hear=moments.hear)
        if setup.keep is not None:
            (setup.keep / f"{name or program.name}-output.txt").write_text(moments.log)
        if not study.is_file():
            return ran
        if setup.keep is not None:
            for file in (recipe, study, report):
                if file.is_file():
                    kept = setup.keep / f"{name or program.name}-{file.name}"
                    kept.write_bytes(file.read_bytes())
        found = json.loads(study.read_text())
        text = recipe.read_text() if recipe.is_file() else ""
    proved = tomllib.loads(text) if text else None
    command = shlex.join(["dynotune", *words, "--", *spelled(program.command(setup.device))])
    return {
        "command": command,
        "moments_s": moments.told(),
        **of_study(found, proved),
        "recipe_toml": without_places(text),
    }


class Moments:
    """When a tune knew what, in seconds since it was started, by the study that it writes as it goes.

    Args:
        records: folder of the tune's records, in which no other study is.
    """

    def __init__(self, records: Path) -> None:
        self.log = ""
        self._records = records
        self._at_s: dict[str, float] = {}
        self._seen_ns = 0

    def hear(self, at_s: float, lines: Sequence[str]) -> None:
        """Take what the tune printed since the last call, and look at its study if that changed."""
        self.log += "".join(f"{at_s:6.1f} {line}\n" for line in lines)
        for file in self._records.glob("*/study.json"):
            with contextlib.suppress(OSError, ValueError):
                changed_ns = file.stat().st_mtime_ns
                if changed_ns != self._seen_ns:
                    self._seen_ns = changed_ns
                    self.look(at_s, json.loads(file.read_text()))

    def look(self, at_s: float, study: Row) -> None:
        """Note what a study knows at a time."""
        knows = {
            "diagnosis": "verdict" in study["diagnosis"],
            "proof": any(one["verdict"] == "faster" for one in study["within"]) or bool(study["recipe"]),
            "recipe": bool(study["recipe"]),
            "end": study["finished"],
        }
        for name, known in knows.items():
            if known:
                self._at_s.setdefault(name, round(at_s, 1))

    def told(self) -> dict[str, float]:
        return dict(self._at_s)


def of_study(study: Row, proved: Row | None) -> Row:
    """What a result keeps of it.

    Args:
        proved: its recipe, which holds that of the study that it began from, too; None without one.
    """
    confirmed = study["confirmed"] or {}
    head = proved["recipe"] if proved else {}
    chosen = proved["settings"] if proved else {}
    began_from = (study["base_recipe"] or {"recipe": {}})["recipe"]
    diagnosis = study["diagnosis"]
    return {
        "verdict": study["verdict"],
        "recipe": _texts(chosen),
        "proved_s": _proved_s(study),
        "began_from": _texts(began_from.get("settings", {})),
        "stated": head.get("speedup"),
        "ci": head.get("ci"),
        "num_pairs": confirmed.get("num_pairs", 0),
        "budget_s": study["budget_s"],
        "run_s": study["run_s"],
        "noise": study["noise"],
        "bottleneck": diagnosis.get("bottleneck"),
        "findings": [finding["id"] for finding in diagnosis.get("findings", [])],
        "fates": {id_: [one["kind"], one["reason"]] for id_, one in study["outcomes"].items()},
        "num_trials": len(study["trials"]),
        "pilots_s": {trial["arm"]: trial["wall_s"] for trial in study["trials"] if trial["phase"] == "pilot"},
        "pairs": [[pair["baseline_s"], pair["candidate_s"]] for pair in confirmed.get("pairs", [])],
        "guarded": {row["arm"]: [row["ok"], row["difference"], row["tolerance"]] for row in study["guarded"]},
        "pays_off": study["break_even"],
        "warnings": [without_places(text) for text in study["warnings"]],
    }


def _proved_s(study: Row) -> float | None:
    """When the last run that the recipe is proved by had ended, since the study began."""
    ends = [trial["began_s"] + trial["wall_s"] for trial in study["trials"] if trial["phase"] == "confirm"]
    return round(max(ends), 1) if ends and study["recipe"] else None


def _texts(settings: Mapping[str, object]) -> list[str]:
    return [
        f"{knob}={str(value).lower() if isinstance(value, bool) else value}"
        for knob, value in sorted(settings.items())
    ]


def _verify(program: Program, folder: Path, rows: Mapping[str, Row], setup: Setup, limit_s: float) -> Row:
    budget_s = limit_s - GRACE_S
    with tempfile.TemporaryDirectory() as there:
        recipe, out = Path(there) / "recipe.toml", Path(there) / "verification.json"
        recipe.write_text(rows["tune"]["recipe_toml"])
        words = [
            "recipe",
            "verify",
            str(recipe),
            "--pairs",
            str(PAIRS["verify"]),
            "--budget",
            f"{budget_s:.0f}s",
        ]
        ran = _dynotune([*words, "--json", str(out)], program, folder, setup, limit_s)
        if not out.is_file():
            return ran
        found = json.loads(out.read_text())
    told = {key: found[key] for key in ("outcome", "reason", "stated", "stated_ci", "differs")}
    compared = found["comparison"]
    return {**told, **of_comparison(compared), **program.results(compared, _records(setup, program))}


def _against(
    kind: str, program: Program, folder: Path, rows: Mapping[str, Row], setup: Setup, limit_s: float
) -> Row:
    """The recipe against the program as it is informed, or as a tool chose, in fresh pairs."""
    words = program.hand if kind == "informed" else str(chosen(kind, rows))
    arms = program.arms(words, setup.device)
    recipe = [*arms.recipe, *recipe_of(rows)]
    return {"words": words, **_pairs(kind, program, folder, setup, limit_s, arms.command, arms.other, recipe)}


def _hand(kind: str, program: Program, folder: Path, setup: Setup, limit_s: float) -> Row:
    """What the informed hand gains over the program as written, in fresh pairs."""
    arms = program.arms(program.hand, setup.device)
    found = _pairs(kind, program, folder, setup, limit_s, arms.command, arms.recipe, arms.other)
    return {"words": program.hand, **found}


def _pairs(
    kind: str,
    program: Program,
    folder: Path,
    setup: Setup,
    limit_s: float,
    command: Sequence[str],
    baseline: Sequence[str],
    candidate: Sequence[str],
) -> Row:
    """Fresh pairs of a command with the settings of two arms."""
    budget_s = limit_s - GRACE_S
    with tempfile.TemporaryDirectory() as there:
        out = Path(there) / "comparison.json"
        ours = ["compare", *candidate, "--in-process", "never"]
        ours += [word for setting in baseline for word in ("--baseline", setting)]
        ours += ["--pairs", str(PAIRS[kind]), "--budget", f"{budget_s:.0f}s", "--json", str(out)]
        ran = _dynotune(ours, program, folder, setup, limit_s, command=command)
        if not out.is_file():
            return ran
        found = json.loads(out.read_text())
    return {**of_comparison(found), **program.results(found, _records(setup, program))}


def of_comparison(comparison: Row) -> Row:
    """What a result keeps of it."""
    if comparison["failed"] is not None:
        failed = comparison["failed"]
        return {"failed": without_places(f"the {failed['arm']}: " + " | ".join(failed["last_lines"][-4:]))}
    if comparison["speedup"] is None:
        return {"failed": comparison["reason"] or "there were too few pairs"}
    # The window is the run's.
    known = {**comparison.get("run", {}), **comparison}
    kept = ("verdict", "speedup", "ci", "num_pairs", "reason", "warmup_steps", "window_steps", "run_s")
    pairs = [[pair["baseline_s"], pair["candidate_s"]] for pair in comparison["pairs"]]
    return {**{key: known.get(key) for key in kept}, "voided": len(comparison["voided"]), "pairs": pairs}


def _peer(tool: str, program: Program, folder: Path, setup: Setup, limit_s: float) -> Row:
    budget_s = peer_budget_s(tool, program, setup)
    with tempfile.TemporaryDirectory() as there:
        out = Path(there) / "chosen.json"
        words = program.peer(tool, setup.device, budget_s, out)
        ran = run_within(limit_s, words, folder, program.environment())
        if not out.is_file():
            # It had its time: that is its answer, and it is not asked again.
            return {"chosen": None, "no_answer": ran["failed"]} if ran.get("timed_out") else ran
        return dict(json.loads(without_places(out.read_text())))


def _dynotune(
    words: Sequence[str],
    program: Program,
    folder: Path,
    setup: Setup,
    limit_s: float,
    *,
    command: Sequence[str] = (),
    hear: Callable[[float, Sequence[str]], None] | None = None,
) -> Row:
    """`command`: in place of the program's."""
    ours = [
        *DYNOTUNE,
        *words,
        "--run-dir",
        str(_records(setup, program)),
        *([] if setup.lock else ["--no-lock"]),
    ]
    whole = [*ours, "--", *(command or program.command(setup.device))]
    return run_within(limit_s, whole, folder, program.environment(), hear=hear)


def _records(setup: Setup, program: Program) -> Path:
    """Folder of the records of a program's runs."""
    return setup.work / "records" / program.name


def run_within(
    limit_s: float,
    words: Sequence[str],
    folder: Path,
    env: Mapping[str, str],
    *,
    patience_s: float = 20.0,
    say: Callable[[str], None] = lambda text: None,
    hear: Callable[[float, Sequence[str]], None] | None = None,
) -> Row:
    """Run a command for at most so long; `failed` says how it ended where nothing came of it.

    Args:
        hear: is told every HEARD_EVERY_S which lines were written, at how many seconds since the start.
    """
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            words, cwd=folder, env=dict(env), stdout=said, stderr=subprocess.STDOUT, start_new_session=True
        )
        timed_out = False
        try:
            _wait(process, limit_s, said.fileno(), hear)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            _end(process, patience_s)
        said.seek(0)
        text = said.read().decode(errors="replace")
    say(text)
    if timed_out:
        return {"failed": f"it took longer than {limit_s:.0f} s", "timed_out": True}
    return {"failed": f"it ended with {process.returncode}: {without_places(text[-1500:])}"}


def _wait(
    process: subprocess.Popen[bytes],
    limit_s: float,
    said: int,
    hear: Callable[[float, Sequence[str]], None] | None,
) -> None:
    """Raises TimeoutExpired. `said`: the open file that it writes to."""
    if hear is None:
        process.wait(limit_s)
        return
    began_s, read_to, partial = time.monotonic(), 0, b""
    while True:
        ended = process.poll() is not None
        at_s = time.monotonic() - began_s
        whole: list[str] = []
        while data := os.pread(said, 1 << 16, read_to):
            read_to += len(data)
            *lines, partial = (partial + data).split(b"\n")
            whole += [line.decode(errors="replace") for line in lines]
        hear(at_s, whole)
        if ended:
            return
        if at_s > limit_s:
            raise subprocess.TimeoutExpired(process.args, limit_s)
        time.sleep(HEARD_EVERY_S)


def _end(process: subprocess.Popen[bytes], patience_s: float) -> None:
    """With its children. First as Ctrl-C does: dynotune then ends what it runs, and leaves nothing behind. It
    does so when terminated too, where a shell began this in the background and Ctrl-C is ignored."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            continue
