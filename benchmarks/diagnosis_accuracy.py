"""How often `dynotune diagnose` is right: programs with a planted fault, in several doses, and programs with
none.

    python benchmarks/diagnosis_accuracy.py [--gpu | --device cuda-x2] [--only ID]… [--doses 10,30,60 |
        --draw SEED]
        [--lanes 1] [--gpus 1] [--programs FOLDER | --sources FOLDER] [--keep FOLDER]
        [--replay FOLDER [--record FOLDER]] [--out FILE]

Each program of lab/faults is diagnosed as a user would, in processes of their own. The programs and what they
plant were written without knowledge of the rules. Of each:

- **found**: a planted id is among the findings, or one of them names it as explained by itself;
- **first**: it is the first finding;
- **false**: findings of medium severity or above that the program neither plants nor, by its own manifest,
    implies.

`--programs` takes programs of another hand in place of these: its manifest.json is a list of objects with
`name`, `program` (a file beside it, run without arguments), `plants` and `implies` (ids), and, where wanted,
`args`, `env` and `stdin`, a text. Where that hand has words of its own, a words.json beside it gives for each
the ids that mean it. `--fixed` runs them with `--fixed`, as programs that plant nothing. `--sources` takes
the published programs of benchmarks/field, in which nobody planted anything: their findings are for readers.
`--draw` takes one dose of each program by lot, in an order by lot. `cuda-x2` is for the programs that need
two GPUs. `--lanes` runs several at once, each on cores of its own (which `cpu-affinity-narrow` rightly notes:
it does not count then); `--gpus` gives each lane one of so many GPUs. Lanes that share a GPU spoil each
other's figures. `--keep` keeps observations and traces, `--replay` judges kept ones again by today's rules,
without running anything, and `--record` writes what it judged, without the traces: tests/faults/recorded was
made so. What is in FILE already is not run again.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import queue
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dynotune.diagnose.conclusions import conclude
from dynotune.diagnose.rank_attribution import attributed
from dynotune.schema import document
from dynotune.schema.facts import Unknown
from dynotune.schema.observation import Observation
from dynotune.trace.readers import reading
from dynotune.trace.summary import summarise
from lab.faults import manifest
from lab.field.programs import published
from lab.provenance import RESULTS, describe, without_places
from lab.tuning.programs import folder_of

DEADLINE_S = 300
MEDIUM = ("high", "medium")
NOT_RECORDED = ("env.PYTHONPATH", "env.LD_LIBRARY_PATH", "env.NVIDIA_REQUIRE_CUDA", "gpu.uuid", "gpu1.uuid")
"""Facts of where it was run: no rule asks for them."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One program in one dose on one device.

    Args:
        plants: empty for a clean one; each may be ids, `one/other`. None where nobody knows.
        cwd: that it needs to be started in.
    """

    name: str
    device: str
    dose: int | None
    plants: tuple[str, ...] | None
    implies: tuple[str, ...]
    command: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    stdin: str | None = None
    cwd: Path | None = None

    @property
    def key(self) -> str:
        dose = "" if self.dose is None else f"-{self.dose}"
        return f"{self.name}{dose}-{self.device}"


def cases(device: str, doses: Sequence[int] | None, only: Sequence[str]) -> Iterator[Case]:
    """Of all programs that run on the device. A fault without a dial has one dose."""
    for fault in (*manifest.FAULTS, *manifest.PAIRS, *manifest.CLEAN):
        clean = fault in manifest.CLEAN
        plants = () if clean else tuple(fault.plants) or (fault.id,)
        name = Path(fault.program).stem
        if device not in fault.devices or (only and name not in only and not set(only) & set(plants)):
            continue
        for dose in (None,) if clean else tuple(fault.doses) or (None,):
            if doses is None or dose is None or dose in doses or len(fault.doses) == 1:
                start = [*(fault.launcher or [sys.executable]), str(manifest.PROGRAMS / fault.program)]
                options = [
                    *([] if dose is None else ["--dose", str(dose)]),
                    "--device",
                    device.removesuffix("-x2"),
                ]
                yield Case(
                    name=name,
                    device=device,
                    dose=dose,
                    plants=plants,
                    implies=tuple(fault.implies),
                    command=(*start, *options, *fault.args),
                    env=tuple(dict(fault.env).items()),
                )


def of_another_hand(folder: Path, device: str, only: Sequence[str], fixed: bool) -> Iterator[Case]:
    of_words = folder / "words.json"
    ids: dict[str, list[str]] = json.loads(of_words.read_text()) if of_words.is_file() else {}

    def meant(words: Sequence[str]) -> list[list[str]]:
        return [] if fixed else [ids.get(word, [word]) for word in words]

    for row in json.loads((folder / "manifest.json").read_text()):
        if not only or row["name"] in only or set(only) & set(row["plants"]):
            options = [*row.get("args", ()), *(["--fixed"] if fixed and row["plants"] else [])]
            yield Case(
                name=row["name"] + "-fixed" * (fixed and bool(row["plants"])),
                device=device,
                dose=None,
                plants=tuple("/".join(each) for each in meant(row["plants"])),
                implies=tuple(id_ for each in meant(row["implies"]) for id_ in each),
                command=(sys.executable, str(folder.absolute() / row["program"]), *options),
                env=tuple(row.get("env", {}).items()),
                stdin=row.get("stdin"),
            )


def of_publishers(sources: Path, device: str, only: Sequence[str]) -> Iterator[Case]:
    """Those whose packages and sources are there, each in a folder of its own with what it reads."""
    work = Path(tempfile.gettempdir(), "dynotune-published")
    for program in published(sources, device):
        if (not only or program.name in only) and not program.missing():
            env, command = tuple(program.environment().items()), tuple(program.command(device))
            yield Case(program.name, device, None, None, (), command, env, cwd=folder_of(program, work))


def drawn(every: Iterable[Case], seed: int) -> list[Case]:
    """Of each program one dose, in an order by lot."""
    lot = random.Random(seed)
    of_program: dict[tuple[str, tuple[str, ...]], list[Case]] = {}
    for case in every:
        # What differs in its arguments too is another program.
        rest = [word for word in case.command if word != str(case.dose)]
        of_program.setdefault((case.name, tuple(rest) if case.plants else ()), []).append(case)
    taken = [lot.choice(doses) for doses in of_program.values()]
    lot.shuffle(taken)
    return taken


def diagnosed(case: Case, cores: Sequence[int], gpu: int | None, keep: Path | None) -> Row:
    """The program under `dynotune diagnose`."""
    # As where the environment is activated: torchrun stands beside this Python.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    env = {**os.environ, "PATH": path, **dict(case.env)}
    if gpu is not None:
        env["CUDA_VISIBLE_DEVICES"] = str(gpu)
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        ours = [
            sys.executable,
            "-m",
            "dynotune",
            "diagnose",
            "--no-lock",
            "--json",
            "-",
            "--run-dir",
            folder,
            "--",
        ]
        words = ["taskset", "-c", ",".join(map(str, cores)), *ours, *case.command]
        typed = Path(folder, "stdin")
        typed.write_text(case.stdin or "")
        try:
            with typed.open() as stdin:
                ran = subprocess.run(
                    words,
                    env=env,
                    cwd=case.cwd or folder,
                    stdin=stdin,
                    capture_output=True,
                    timeout=DEADLINE_S,
                )
        except subprocess.TimeoutExpired:
            return {"failed": f"took longer than {DEADLINE_S} s"}
        found = sorted(Path(folder).rglob("observation.json"))
        if keep is not None and found:
            (keep / f"{case.key}.json.gz").write_bytes(gzip.compress(found[-1].read_bytes(), mtime=0))
            for number, trace in enumerate(sorted(Path(folder).rglob("trace-*.json.gz"))):
                shutil.copy(trace, keep / f"{case.key}.trace{number}.json.gz")
    row: Row = {"took_s": round(time.monotonic() - started_s, 1)}
    if ran.returncode != 0:
        return {**row, "failed": without_places(ran.stderr.decode(errors="replace")[-800:])}
    return {**row, **_concluded(json.loads(ran.stdout))}


def replayed(case: Case, folder: Path, record: Path | None) -> Row:
    """What today's rules say of a kept observation, and today's reading of the traces that were kept with
    it."""
    kept = folder / f"{case.key}.json.gz"
    if not kept.is_file():
        return {"failed": "no observation was kept"}
    observation = document.decode(gzip.decompress(kept.read_bytes()), Observation, name=str(kept))
    traces = sorted(folder.glob(f"{case.key}.trace*.json.gz"))
    if traces and not isinstance(observation.processes, Unknown):
        timelines = reading.read_traces(traces)
        trace = summarise(timelines)
        attribution = attributed(observation.processes, trace, timelines)
        observation = msgspec.structs.replace(observation, trace=trace, attribution=attribution)
    if record is not None:
        known = {name: value for name, value in observation.facts.items() if name not in NOT_RECORDED}
        observation = msgspec.structs.replace(observation, facts=known)
        text = without_places(msgspec.json.encode(observation).decode())
        if isinstance(python := known.get("python.executable"), str):
            text = text.replace(str(Path(python).parents[1]), "venv")
        (record / f"{case.key}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    return _concluded(json.loads(msgspec.json.encode(conclude(observation))))


def _concluded(diagnosis: Row) -> Row:
    findings = [
        {
            "id": finding["id"],
            "severity": finding["severity"],
            "share": finding["share"] if isinstance(finding["share"], int | float) else None,
            "also": finding["also"],
            "where": finding["where"].get("function", ""),
            "candidates": [f"{setting['knob']}={setting['value']}" for setting in finding["candidates"]],
        }
        for finding in diagnosis["findings"]
    ]
    steps = diagnosis["steps"]
    return {
        "bottleneck": diagnosis["bottleneck"],
        "step_s": steps.get("step_s"),
        "busy_share": diagnosis["busy_share"],
        "shares": diagnosis["shares"],
        "findings": findings,
        "unknown": [row["id"] for row in diagnosis["unknown"]],
    }


def judged(case: Case, row: Row, own_doing: set[str]) -> Row:
    """What was found, missed and falsely alarmed.

    Args:
        own_doing: ids of what this benchmark does to the programs.
    """
    if "failed" in row or case.plants is None:
        return row
    findings = [finding for finding in row["findings"] if finding["id"] not in own_doing]
    named = {finding["id"]: finding for finding in findings}
    named |= {id_: finding for finding in findings for id_ in finding["also"] if id_ not in named}
    planted = {plant: set(plant.split("/")) for plant in case.plants}
    mine = {*case.implies}.union(*planted.values())
    first = {findings[0]["id"], *findings[0]["also"]} if findings else set()
    heavy = [finding for finding in findings if finding["severity"] in MEDIUM]
    return {
        **row,
        "planted": list(case.plants),
        "found": [plant for plant, ids in planted.items() if ids & set(named)],
        "missed": [plant for plant, ids in planted.items() if not ids & set(named)],
        "first": any(first & ids for ids in planted.values()),
        "right": [f["id"] for f in heavy if {f["id"], *f["also"]} & mine],
        "false": [f["id"] for f in heavy if not {f["id"], *f["also"]} & mine],
    }


def summary(rows: dict[str, Row]) -> Row:
    """Recall over planted faults, how often the first finding is one, precision over findings of medium and
    above."""
    ran = [row for row in rows.values() if "planted" in row]
    planted = [row for row in ran if row["planted"]]
    num_planted = sum(len(row["planted"]) for row in planted)
    num_found = sum(len(row["found"]) for row in planted)
    num_right, num_false = (sum(len(row[name]) for row in ran) for name in ("right", "false"))
    return {
        "num_programs": len(rows),
        "num_failed": sum("failed" in row for row in rows.values()),
        "num_planted": num_planted,
        "num_found": num_found,
        "recall": num_found / num_planted if num_planted else None,
        "first": sum(row["first"] for row in planted) / len(planted) if planted else None,
        "precision": num_right / (num_right + num_false) if num_right + num_false else None,
        "num_clean": len(ran) - len(planted),
        "false_on_clean": sum(len(row["false"]) for row in ran if not row["planted"]),
        "confusion": _confusion(ran),
    }


def _confusion(ran: Sequence[Row]) -> dict[str, dict[str, int]]:
    """Planted id, `none` for clean programs, to the ids that stood in its findings of medium and above."""
    matrix: dict[str, Counter[str]] = {}
    for row in ran:
        for planted in row["planted"] or ["none"]:
            heavy = [finding["id"] for finding in row["findings"] if finding["severity"] in MEDIUM]
            matrix.setdefault(planted, Counter()).update(heavy or ["nothing"])
    return {planted: dict(counted.most_common()) for planted, counted in sorted(matrix.items())}


def show(rows: dict[str, Row]) -> None:
    for key, row in rows.items():
        if "failed" in row:
            last = (row["failed"].strip().splitlines() or [""])[-1]
            print(f"{key:42} FAILED {last[:100]}")
            continue
        listed = [
            f"{f['id']} {'?' if f['share'] is None else format(f['share'], '.0%')}"
            for f in row["findings"][:3]
        ]
        marks = next((name for name in ("first", "found", "planted") if row.get(name)), "").replace(
            "planted", "MISSED"
        )
        false = f"  FALSE {', '.join(row['false'])}" if row.get("false") else ""
        print(f"{key:42} {marks:6} {', '.join(listed)}{false}")
    total = summary(rows)
    percent = {
        name: "-" if total[name] is None else f"{total[name]:.1%}"
        for name in ("recall", "first", "precision")
    }
    print(
        f"{total['num_programs']} programs, {total['num_failed']} failed; recall {percent['recall']}, first "
        f"{percent['first']}, precision {percent['precision']}; {total['false_on_clean']} false alarms on "
        f"{total['num_clean']} clean programs"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda", "cuda-x2"), default="cpu")
    parser.add_argument("--gpu", action="store_const", const="cuda", dest="device", help="as --device cuda")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--doses", type=lambda text: tuple(map(int, text.split(","))))
    parser.add_argument("--draw", type=int, metavar="SEED")
    parser.add_argument("--lanes", type=int, default=1)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--programs", type=Path, metavar="FOLDER")
    parser.add_argument("--sources", type=Path, metavar="FOLDER")
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--replay", type=Path)
    parser.add_argument("--record", type=Path)
    parser.add_argument(
        "--budget-s", type=float, default=float("inf"), help="begin no further program after it"
    )
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.keep:
        given.keep.mkdir(parents=True, exist_ok=True)
    out = given.out or RESULTS / f"diagnosis_accuracy_{given.device}.json"
    rows: dict[str, Row] = (
        json.loads(out.read_text())["programs"] if out.is_file() and not given.replay else {}
    )
    shared = given.device == "cuda" and given.lanes > given.gpus
    own_doing = {"cpu-affinity-narrow"} if given.lanes > 1 or given.replay else set()
    own_doing |= {"gpu-shared"} if shared else set()
    if given.programs:
        wanted = list(of_another_hand(given.programs, given.device, given.only, given.fixed))
    elif given.sources:
        wanted = list(of_publishers(given.sources, given.device, given.only))
    else:
        wanted = list(cases(given.device, given.doses, given.only))
    wanted = wanted if given.draw is None else drawn(wanted, given.draw)
    until_s = time.monotonic() + given.budget_s

    cpus = sorted(os.sched_getaffinity(0))
    size = max(1, len(cpus) // given.lanes)
    free = queue.SimpleQueue[tuple[list[int], int | None]]()
    for lane in range(given.lanes):
        free.put((cpus[lane * size : (lane + 1) * size], lane % given.gpus if given.gpus > 1 else None))

    saving = threading.Lock()

    def judge(case: Case) -> None:
        if (case.key in rows and "failed" not in rows[case.key]) or time.monotonic() > until_s:
            return
        own = free.get()
        try:
            row = (
                replayed(case, given.replay, given.record)
                if given.replay
                else diagnosed(case, *own, given.keep)
            )
        finally:
            free.put(own)
        rows[case.key] = judged(case, row, own_doing)
        with saving:
            save()

    def save() -> None:
        asked = [case.key for case in wanted if case.key in rows]
        ordered = {key: rows[key] for key in [*(key for key in rows if key not in asked), *asked]}
        how = {"lanes": given.lanes, "gpus": given.gpus, "shared_gpu": shared, "replayed": bool(given.replay)}
        document = {**describe_once, **how, "summary": summary(ordered), "programs": ordered}
        partial = out.with_name(out.name + ".partial")
        partial.write_text(without_places(json.dumps(document, indent=1)) + "\n")
        partial.replace(out)

    describe_once = describe()
    describe_once["command"] = without_places(shlex.join(["python", *sys.argv]))
    with ThreadPoolExecutor(given.lanes) as pool:
        list(pool.map(judge, wanted))
    show({case.key: rows[case.key] for case in wanted if case.key in rows})


if __name__ == "__main__":
    main()
