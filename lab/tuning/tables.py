"""Full factorial tables of real programs: every arm in blocks in random order, and tune's choice against
their best.

A table is a JSON file that `benchmarks/search_replay.py` reads, too: `knobs` with their values, first what
the program has as written; `arms` with the values of each, by `Arm.key`, "" being the baseline; `run_s`. Only
whole blocks count.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import structs

from dynotune import knobs
from dynotune.measure.bench import Journal
from dynotune.measure.live import facts_of, machine_lock
from dynotune.probe.facts.host import usable_cpus
from dynotune.schema.arm import BASELINE, Arm, arm
from dynotune.schema.run import RunSpec
from dynotune.schema.study import Candidate, Study
from dynotune.search.real_bench import RealBench
from lab.provenance import describe
from lab.tuning.parts import Row, Setup, tuned
from lab.tuning.programs import Program, folder_of

MOST_ARMS = 12
BLOCKS = {"cuda": 8, "cpu": 4}
"""Runs of each arm: as many as a comparison's third look has."""
QUARTER = 0.25
REACH = 0.95
FOREVER_S = 1e9
WINDOW_RUNS = 40.0


class Quiet:
    """A watcher that says what is wrong, and nothing else."""

    def say(self, text: str) -> None: ...

    def warn(self, text: str) -> None:
        print(f"  {text}", flush=True)

    def begun(self, folder: Path) -> None: ...

    def running(self, what: str, *, left_s: float | None = None) -> None: ...


def arms_of(table: Mapping[str, Sequence[object]]) -> list[Arm]:
    """All combinations, the baseline first. Raises ValueError for more than MOST_ARMS."""
    choices = [
        [None, *(knobs.parse(f"{knob}={_text(value)}") for value in values[1:])]
        for knob, values in table.items()
    ]
    found = [
        arm(setting for setting in chosen if setting is not None) for chosen in itertools.product(*choices)
    ]
    if len(found) > MOST_ARMS:
        raise ValueError(f"{len(found)} arms are more than {MOST_ARMS}")
    return found


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def empty(table: Mapping[str, Sequence[object]]) -> Row:
    """A table before its first block."""
    return {
        "knobs": {knob: list(values) for knob, values in table.items()},
        "arms": {one.key: [] for one in arms_of(table)},
        "ends": {},
        "run_s": None,
        "blocks": [],
    }


def num_blocks(table: Row) -> int:
    return len(table["blocks"])


def blocks_of(setup: Setup) -> int:
    return setup.blocks or BLOCKS[setup.device]


def took_s(table: Row) -> float:
    """Of the runs that count, without pilots and what was made again."""
    return float(sum(block["wall_s"] for block in table["blocks"]))


def with_block(
    table: Row, block: Mapping[str, float], ends: Mapping[str, str], walls_s: Sequence[float]
) -> Row:
    """The table with one more block; an arm that does not end in a measurement has no value in any."""
    ends = {**table["ends"], **ends}
    arms = {
        key: [] if key in ends else [*values, *([block[key]] if key in block else [])]
        for key, values in table["arms"].items()
    }
    before = num_blocks(table) * sum(key not in ends for key in arms)
    total_s = (table["run_s"] or 0.0) * before + sum(walls_s)
    run_s = total_s / (before + len(walls_s)) if walls_s else table["run_s"]
    blocks = [*table["blocks"], {"values": dict(block), "wall_s": round(sum(walls_s), 1)}]
    return {**table, "arms": arms, "ends": ends, "blocks": blocks, "run_s": run_s}


# Recording


def block_s(program: Program, table: Row, device: str) -> float:
    return len(table["arms"]) * (table["run_s"] or program.run_s[device])


def record(
    program: Program,
    setup: Setup,
    file: Path,
    *,
    blocks: int,
    left_s: Callable[[], float],
    say: Callable[[str], None] = print,
) -> Row:
    """Record blocks until there are so many, or the next one would take too long; the file is whole after
    each.

    Raises:
        DynotuneError: the program as it is fails, or the machine; the block in which it did is lost.
    """
    table = json.loads(file.read_text()) if file.is_file() else empty(program.table[setup.device])
    if num_blocks(table) >= blocks or left_s() < block_s(program, table, setup.device):
        return dict(table)
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_made(setup.work / "records")) as there:
        request = RunSpec(
            command=program.command(setup.device), cwd=folder_of(program, setup.work),
            env=program.environment(), base=Path(there), lock=setup.lock,
        )  # fmt: skip
        with machine_lock(request, Quiet()):
            bench, table = _bench(request, program, table, setup)
            while num_blocks(table) < blocks and left_s() >= block_s(program, table, setup.device):
                table = with_block(table, *_block(bench, table))
                partial = file.with_name(file.name + ".partial")
                partial.write_text(json.dumps(table, indent=1) + "\n")
                partial.replace(file)
                say(
                    f"  {program.name}, block {num_blocks(table)} of {blocks}: "
                    f"{table['blocks'][-1]['wall_s']} s"
                )
    return dict(table)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _bench(request: RunSpec, program: Program, table: Row, setup: Setup) -> tuple[RealBench, Row]:
    """A bench whose window is fixed, in this sitting or an earlier one, and which has run once to be warm."""
    settings = [setting for one in arms_of(table["knobs"]) for setting in one.settings]
    planned = structs.replace(
        request.recorded, warmup_steps=table.get("warmup_steps"), window_steps=table.get("window_steps")
    )
    study = Study(
        id=program.name,
        run=planned,
        # No longer a window than a tune of so many runs takes.
        budget_s=WINDOW_RUNS * program.run_s[setup.device],
        facts=facts_of(request),
        candidates=[
            Candidate(setting=setting, effect=knobs.get(setting.knob).effect, needs_warm_cache=False)
            for setting in dict.fromkeys(settings)
        ],
        run_s=table["run_s"],
        unit=table.get("unit", ""),
    )
    bench = RealBench(request, request.base, Journal(study), Quiet(), guess_s=program.run_s[setup.device])
    bench.run(BASELINE, "pilot", 0)
    if study.run_s is None:
        bench.run(BASELINE, "prune", 1)
        study = bench.journal.document
        fixed = {
            "warmup_steps": study.run.warmup_steps,
            "window_steps": study.run.window_steps,
            "unit": study.unit,
        }
        table = {**describe(), **table, **fixed, "tuned_command": [*program.words]}
    study = structs.replace(study, budget_s=FOREVER_S, run_s=study.run_s or program.run_s[setup.device])
    return RealBench(request, _made(request.base / "table"), Journal(study), Quiet()), table


def _block(bench: RealBench, table: Row) -> tuple[dict[str, float], dict[str, str], list[float]]:
    """Each arm once, in random order; a run that something disturbed is made again, twice at most."""
    values: dict[str, float] = {}
    ends: dict[str, str] = {}
    walls_s: list[float] = []
    number = num_blocks(table) + 1
    order = [one for one in arms_of(table["knobs"]) if one.key not in table["ends"]]
    random.Random(number).shuffle(order)
    for one in order:
        for _ in range(3):
            # Of this phase no losses are compared: a table is to hold all arms.
            trial = bench.run(one, "prune", number)
            if trial.ended != "measured":
                ends[one.key] = f"{trial.ended}: {trial.detail}"
                break
            if trial.value is not None:
                values[one.key] = trial.value
            if not trial.void:
                break
        walls_s.append(trial.wall_s)
    return values, ends, walls_s


# Tune's choice


def tune_within(program: Program, setup: Setup, table: Row) -> Row:
    """`dynotune tune` of what the table holds and nothing else, in a quarter of the table's time."""
    budget_s = QUARTER * took_s(table)
    with_values = [setting for one in arms_of(table["knobs"]) for setting in one.settings]
    also = [word for setting in dict.fromkeys(with_values) for word in ("--try", str(setting))]
    rest = [word for text in left_out(table["knobs"], len(usable_cpus())) for word in ("--exclude", text)]
    began_s = time.monotonic()
    words = ["tune", "--budget", f"{budget_s:.0f}s", *also, *rest]
    row = tuned(
        words, program, folder_of(program, setup.work), setup, budget_s + 90.0, f"{program.name}-table"
    )
    return {**row, "wall_s": round(time.monotonic() - began_s, 1), "table_s": took_s(table)}


def left_out(table: Mapping[str, Sequence[object]], num_cores: int) -> list[str]:
    """Other knobs; and other numbers of the table's own: a finding may name any that the machine's cores
    allow."""
    others = [knob.id for knob in knobs.all_knobs() if knob.id not in table]
    numbers = []
    for name, held in table.items():
        knob = knobs.get(name)
        if knob.type == "int":
            least = int(knob.minimum or 0)
            numbers += [f"{name}={number}" for number in range(least, num_cores + 1) if number not in held]
    return [*others, *numbers]


def against_best(table: Row, recipe: Sequence[str]) -> Row:
    """How near to the table's best arm a recipe is, by the table's own values.

    Returns:
        best, speedup_of_best, chosen, speedup, share (of the best's speed), reached. Of a recipe that is none
        of its measured arms, chosen, speedup and share are None: a tune took its time, and its row is not to
        be lost.
    """
    key = arm(knobs.parse(text) for text in recipe).key
    gains = {key: _gain(table, key) for key, values in table["arms"].items() if values}
    best = max(gains, key=lambda one: gains[one])
    row: Row = {"best": best, "speedup_of_best": math.exp(gains[best])}
    if key not in gains:
        return {**row, "chosen": None, "speedup": None, "share": None, "reached": False}
    share = math.exp(gains[key] - gains[best])
    return {**row, "chosen": key, "speedup": math.exp(gains[key]), "share": share, "reached": share >= REACH}


def _gain(table: Row, key: str) -> float:
    """Blocks are of one machine each, so an arm is compared with the baseline of its own block."""
    blocks = [block["values"] for block in table["blocks"]]
    return statistics.fmean(math.log(row[""] / row[key]) for row in blocks if key in row and "" in row)
