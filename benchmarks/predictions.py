"""Whether what the timeline predicts of settings comes true: each setting switched on and off within one live
run.

    python benchmarks/predictions.py KEPT [--programs FOLDER | --sources FOLDER] [--device cuda]
        [--only NAME]…
        [--draw SEED] [--lanes 1] [--gpus 1] [--limit-s 80] [--budget-s S] [--out FILE]

KEPT is the folder that diagnosis_accuracy.py filled by `--keep`, and the programs are the same: their traces
are read and run again by today's code; of one without traces the kept predictions are taken. Every setting
that it predicts and that can be switched is an arm, and so are the workers that the diagnosis names. Of each:

- **within**: the gain that was measured, 1 - 1/speed-up, lies within 15% of a step of the middle of the
    range;
- **held**: it lies in the range, as far as its interval tells;
- **broken**: even the lowest gain that the interval allows is above the range.

What is in FILE already is not run again, and several processes may fill one file.
"""

from __future__ import annotations

import argparse
import gzip
import os
import queue
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
from diagnosis_accuracy import Case, cases, drawn, of_another_hand, of_publishers
from rich.console import Console

from dynotune import knobs
from dynotune.diagnose.conclusions import conclude
from dynotune.diagnose.rank_attribution import attributed
from dynotune.measure.live import Live, TurnsPlan
from dynotune.report import Progress
from dynotune.schema import document
from dynotune.schema.arm import arm
from dynotune.schema.attribution import Predicted
from dynotune.schema.errors import DynotuneError
from dynotune.schema.facts import Unknown
from dynotune.schema.observation import Observation
from dynotune.schema.run import RunSpec
from dynotune.trace.readers import reading
from dynotune.trace.summary import summarise
from lab import result_file
from lab.provenance import RESULTS, without_places

NEAR = 0.15
TELLING = 0.03
"""Of a step: below, "nothing" is no feat to predict."""
NUM_BLOCKS, FEWEST_BLOCKS = 6, 3

Row = dict[str, Any]


def predicted(case: Case, folder: Path) -> dict[str, Predicted]:
    """What is predicted of settings that can be switched while a program runs, by setting."""
    found = folder / f"{case.key}.json.gz"
    traces = sorted(folder.glob(f"{case.key}.trace*.json.gz"))
    if not found.is_file():
        return {}
    observation = document.decode(gzip.decompress(found.read_bytes()), Observation, name=str(found))
    if isinstance(observation.processes, Unknown):
        return {}
    attribution = observation.attribution
    if traces:
        timelines = reading.read_traces(traces)
        attribution = attributed(observation.processes, summarise(timelines), timelines)
    if isinstance(attribution, Unknown):
        return {}
    observation = msgspec.structs.replace(observation, attribution=attribution)
    every = {name: one for name, one in attribution.predicted.items() if "=" in name}
    for finding in conclude(observation).findings:
        every |= finding.predicted
    return {name: one for name, one in every.items() if not knobs.why_not_switched(knobs.parse(name))}


def measured(case: Case, settings: Sequence[str], gpu: str | None, limit_s: float) -> dict[str, Row]:
    """The speed-up of each setting, or why there is none."""
    env = {**os.environ, **dict(case.env)} | ({} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu})
    with tempfile.TemporaryDirectory() as base:
        run = RunSpec(
            command=list(case.command),
            cwd=case.cwd or Path(base),
            env=env,
            base=Path(base, "runs"),
            lock=False,
        )
        try:
            plan = TurnsPlan(num_blocks=NUM_BLOCKS, fewest_blocks=FEWEST_BLOCKS)
            with Live(run, run.base, {}, Progress(Console(quiet=True))) as live:
                turns = live.turns([arm([knobs.parse(setting)]) for setting in settings], limit_s, plan)
                for _ in turns:
                    pass
                found = turns.found()
        except DynotuneError as error:
            return {setting: {"reason": without_places(error.message)} for setting in settings}
    rows: dict[str, Row] = {key: {"reason": without_places(reason)} for key, reason in found.given_up.items()}
    for one in found.estimates:
        rows[one.arm] = {"speedup": one.speedup, "ci": one.ci, "num_blocks": one.num_blocks}
    return rows


def judged(row: Row, one: Predicted) -> Row:
    row = {"predicted": [one.low, one.high], **row}
    if "speedup" not in row:
        return row
    gain, (low, high) = 1 - 1 / row["speedup"], [1 - 1 / end for end in row["ci"]]
    return {
        **row,
        "gain": gain,
        "off_by": abs(gain - (one.low + one.high) / 2),
        "within": abs(gain - (one.low + one.high) / 2) <= NEAR,
        "held": low <= one.high and high >= one.low,
        "broken": low > one.high,
    }


def show(rows: dict[str, Row]) -> None:
    for key, row in rows.items():
        low, high = row["predicted"]
        said = f"{key[:64]:64} {low:5.0%} to {high:4.0%}"
        if "gain" not in row:
            print(f"{said}  not measured: {row['reason'][:70]}")
        else:
            marks = " ".join(name for name in ("within", "held", "broken") if row[name])
            print(f"{said}  gains {row['gain']:5.1%} ({row['num_blocks']} blocks)  {marks}")
    ran = [row for row in rows.values() if "gain" in row]
    telling = [row for row in ran if max(abs(row["gain"]), *map(abs, row["predicted"])) >= TELLING]
    for said, some in (("measured", ran), (f"of {TELLING:.0%} or more, predicted or measured", telling)):
        if some:
            counts = ", ".join(
                f"{name} {sum(row[name] for row in some)}" for name in ("within", "held", "broken")
            )
            print(
                f"{len(some)} {said}: {counts}; off by {statistics.median(row['off_by'] for row in some):.1%}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kept", type=Path)
    parser.add_argument("--programs", type=Path, metavar="FOLDER")
    parser.add_argument("--sources", type=Path, metavar="FOLDER")
    parser.add_argument("--draw", type=int, metavar="SEED", help="take the programs in an order by lot")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--lanes", type=int, default=1)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--limit-s", type=float, default=80.0, help="for one program")
    parser.add_argument(
        "--budget-s", type=float, default=float("inf"), help="begin no further program after it"
    )
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    out = given.out or RESULTS / f"predictions_{given.device}.json"
    until_s = time.monotonic() + given.budget_s
    if given.programs:
        wanted = list(of_another_hand(given.programs, given.device, given.only, fixed=False))
    elif given.sources:
        wanted = list(of_publishers(given.sources, given.device, given.only))
    else:
        wanted = list(cases(given.device, None, given.only))
    wanted = wanted if given.draw is None else drawn(wanted, given.draw)
    cpus = sorted(os.sched_getaffinity(0))
    size = max(1, len(cpus) // given.lanes)
    free = queue.SimpleQueue[tuple[list[int], str | None]]()
    # Only those that were left to it: another benchmark may have the others.
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(given.gpus)))).split(",")
    for lane in range(given.lanes):
        free.put((cpus[lane * size : (lane + 1) * size], gpus[lane % given.gpus] if given.gpus > 1 else None))

    def try_one(case: Case) -> None:
        known = result_file.read(out).get("settings", {})
        if time.monotonic() > until_s or any(key.startswith(f"{case.key} ") for key in known):
            return
        cores, gpu = free.get()
        try:
            os.sched_setaffinity(0, cores)  # this thread's, and so its programs'
            settings = predicted(case, given.kept)
            rows = measured(case, list(settings), gpu, given.limit_s) if settings else {}
        except (OSError, subprocess.SubprocessError, DynotuneError) as error:
            print(f"{case.key}: {error}", flush=True)
            return
        finally:
            free.put((cores, gpu))
        found = {
            f"{case.key} {name}": judged(rows[name], one) for name, one in settings.items() if name in rows
        }
        with result_file.opened(out) as result:
            result.setdefault("settings", {}).update(found)

    with ThreadPoolExecutor(given.lanes) as pool:
        list(pool.map(try_one, wanted))
    show(result_file.read(out).get("settings", {}))


if __name__ == "__main__":
    main()
