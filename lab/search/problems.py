"""Commands that are tables, for `benchmarks/search_replay.py`: made up with planted interactions, or
recorded."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dynotune import knobs
from dynotune.schema.arm import BASELINE, Arm, arm, ids_of
from dynotune.schema.setting import Setting
from dynotune.schema.study import Candidate, Ended
from lab.search.studies import candidate
from lab.search.tables import Noise, Recorded, Table

NOTHING = 1e-9
SLOW_START = {"start_s": 40.0, "window_s": 5.0}
THREE_MINUTES_S = 180.0
RUN_S = 10.0
WORKERS = "loader.num_workers"


class Parts(NamedTuple):
    """A command whose step is made of parts, seconds each, and settings that change some of them.

    The device works while the host launches what comes next, so the longer of the two counts; batches come
    beside both where there are workers, and before them where there are none.

    Args:
        spares: by id of a setting, by part, what is left of it. Of two that spare the same part, the better
            one counts.
        num_workers: by id.
    """

    parts: Mapping[str, float]
    spares: Mapping[str, Mapping[str, float]]
    num_workers: Mapping[str, int]
    start_s: float = 6.0
    window_s: float = 4.0

    @property
    def base(self) -> float:
        return self._step_s(BASELINE)

    def gain(self, one: Arm) -> float:
        return math.log(self.base / self._step_s(one))

    def end(self, one: Arm) -> Ended:
        return "measured"

    def value(self, one: Arm, rng: np.random.Generator) -> float:
        return self._step_s(one)

    def _step_s(self, one: Arm) -> float:
        ids = [str(setting) for setting in one.settings]
        left = {
            part: whole * min([1.0, *(self.spares.get(id_, {}).get(part, 1.0) for id_ in ids)])
            for part, whole in self.parts.items()
        }
        # Other settings make more launches, whatever is spared.
        for id_ in ids:
            left["launches"] *= max(1.0, self.spares.get(id_, {}).get("launches", 1.0))
        device_s = left["products"] + left["other kernels"] + left["optimizer"]
        step_s = max(device_s, left["launches"]) + left["copy"]
        workers = max([0, *(self.num_workers.get(id_, 0) for id_ in ids)])
        return max(step_s, left["batch"] / workers) if workers else step_s + left["batch"]


class Problem(NamedTuple):
    """A table, what may be tried, and for how long."""

    table: Table | Recorded | Parts
    candidates: list[Candidate]
    noise: Noise
    budget_s: float
    seed: int
    switch_sd: float = 0.01
    """Of the logarithm of what one block within a process says."""


def by_knob(candidates: Sequence[Candidate]) -> list[list[Setting]]:
    knobs: dict[str, list[Setting]] = {}
    for one in candidates:
        knobs.setdefault(one.setting.knob, []).append(one.setting)
    return list(knobs.values())


# The truth


def best_of(problem: Problem) -> float:
    """Return the gain of the best arm: of a table from all arms of the knobs that interact; else from all
    arms."""
    if isinstance(problem.table, Recorded):
        arms = (_arm_of(key, problem.candidates) for key, values in problem.table.values.items() if values)
        return max(problem.table.gain(one) for one in arms)
    if isinstance(problem.table, Parts):
        choices = itertools.product(*([None, *settings] for settings in by_knob(problem.candidates)))
        return max(problem.table.gain(arm(one for one in chosen if one is not None)) for chosen in choices)
    total = 0.0
    for settings in _apart(problem.candidates, problem.table):
        choices = itertools.product(*([None, *values] for values in settings))
        arms = [arm(setting for setting in chosen if setting is not None) for chosen in choices]
        total += max(problem.table.gain(one) for one in arms if problem.table.end(one) == "measured")
    return total


def _apart(candidates: Sequence[Candidate], table: Table) -> list[list[list[Setting]]]:
    """Return the values of each knob, those knobs together of which the table plants an interaction."""
    parts = [{values[0].knob: values} for values in by_knob(candidates)]
    for together in table.together:
        knobs = {id_.partition("=")[0] for id_ in together}
        joined = {knob: values for part in parts if knobs & set(part) for knob, values in part.items()}
        parts = [*(part for part in parts if not knobs & set(part)), joined]
    return [list(part.values()) for part in parts]


def false_wins(problem: Problem, one: Arm) -> int:
    gain = problem.table.gain(one)
    rests = ([other for other in one.settings if other != setting] for setting in one.settings)
    return sum(problem.table.gain(arm(rest)) >= gain - NOTHING for rest in rests)


def _arm_of(key: str, candidates: Sequence[Candidate]) -> Arm:
    by_id = {one.id: one.setting for one in candidates}
    return arm(by_id[id_] for id_ in ids_of(key))


# Synthetic tables


def synthetic(seed: int, sd: float, num_runs: int) -> Problem:
    """4 to 14 knobs of 1 to 3 values: most do nothing, some help or hurt; two groups interact; some arms
    fail."""
    rng = np.random.default_rng([11, seed])
    num_knobs = int(rng.integers(4, 15))
    candidates, gains = [], {}
    group_of = {knob: f"group{knob // 3}" for knob in range(min(6, num_knobs)) if rng.random() < 0.8}
    for knob in range(num_knobs):
        helps = rng.random()
        at_best = 0.0
        if helps < 0.30:
            at_best = float(rng.choice([0.02, 0.05, 0.10, 0.25])) * float(rng.uniform(0.7, 1.3))
        elif helps < 0.45:
            at_best = -float(rng.choice([0.02, 0.05, 0.2])) * float(rng.uniform(0.7, 1.3))
        for value in range(int(rng.choice([1, 1, 1, 2, 3]))):
            one = candidate(f"knob{knob:02d}={value}", needs_warm_cache=rng.random() < 0.2)
            candidates.append(one)
            gains[one.id] = at_best * float(rng.uniform(0.5, 1.0)) if value else at_best
    table = Table(gains, _planted(rng, candidates, group_of), _failing(rng, candidates))
    # Which knob is named first says nothing of which one is good.
    order = rng.permutation(len(candidates))
    noise = Noise(sd=sd)
    return Problem(table, [candidates[at] for at in order], noise, num_runs * RUN_S, seed)


def few(seed: int, sd: float, num_runs: int) -> Problem:
    """1 to 4 knobs of one value, as findings name them: half of them help, by up to three times as fast."""
    rng = np.random.default_rng([12, seed])
    candidates = [
        candidate(f"knob{knob}={knob}", needs_warm_cache=rng.random() < 0.2)
        for knob in range(int(rng.integers(1, 5)))
    ]
    gains = {
        one.id: math.log(rng.choice([1.05, 1.2, 1.6, 2.2, 3.0])) for one in candidates if rng.random() < 0.5
    }
    # What both spare is spared once.
    both = [one for one in candidates if one.id in gains]
    together = {
        frozenset({one.id, other.id}): -0.8 * min(gains[one.id], gains[other.id])
        for one, other in itertools.combinations(both[:2], 2)
    }
    return Problem(Table(gains, together), candidates, Noise(sd=sd), num_runs * RUN_S, seed)


def of_parts(seed: int, sd: float, num_runs: int) -> Problem:
    """A training whose step is made of parts, settings that a diagnosis would name, and two that do
    nothing."""
    rng = np.random.default_rng([14, seed])

    def between(least: float, most: float) -> float:
        return float(rng.uniform(least, most))

    parts = {
        "products": between(5, 60),
        "other kernels": between(3, 25),
        "optimizer": between(0.5, 6),
        "launches": between(5, 35),
        "copy": between(0.2, 6),
        "batch": float(rng.choice([1.0, 5.0, 40.0, 120.0])),
    }
    tf32, half = between(0.2, 0.7), between(0.1, 0.5)
    spares: dict[str, dict[str, float]] = {
        "matmul.fp32_precision=high": {"products": tf32},
        "precision.autocast=bf16": {
            "products": half,
            "other kernels": between(0.5, 0.9),
            "launches": between(1.0, 1.15),
        },
        "fused=1": {"optimizer": between(0.15, 0.5), "launches": between(0.85, 0.98)},
        "compile=default": {"other kernels": between(0.4, 0.8), "launches": between(0.4, 0.8)},
        "channels_last=1": {"products": between(0.7, 1.1)},
        "pin=1": {"copy": between(0.3, 0.7)},
        "idle0=1": {},
        "idle1=1": {},
    }
    num_workers = {f"{WORKERS}=4": 4, f"{WORKERS}=12": 12} if parts["batch"] > 1 else {}
    ids = [id_ for id_ in spares if id_.startswith("idle") or rng.random() < 0.7] + list(num_workers)
    candidates = [candidate(id_, needs_warm_cache=id_.startswith("compile")) for id_ in ids]
    order = rng.permutation(len(candidates))
    table = Parts({part: took / 1000 for part, took in parts.items()}, spares, num_workers)
    return Problem(table, [candidates[at] for at in order], Noise(sd=sd), num_runs * RUN_S, seed)


def helping(gain: float, sd: float, seed: int) -> Problem:
    """20 settings that do nothing, or of which one gains."""
    candidates = [candidate(f"idle{at:02d}=1", needs_warm_cache=at % 5 == 0) for at in range(20)]
    if gain:
        candidates[seed % 20] = candidate("good=1")
    return Problem(Table({"good=1": math.log1p(gain)}), candidates, Noise(sd=sd), 100 * RUN_S, seed)


def slow_start(gain: float, sd: float, seed: int) -> Problem:
    """8 settings that do nothing, or of which one gains: three minutes, and a start that takes forty
    seconds."""
    candidates = [candidate(f"idle{at:02d}=1", in_process=True) for at in range(8)]
    if gain:
        candidates[seed % 8] = candidate("good=1", in_process=True)
    table = Table({"good=1": math.log1p(gain)}, **SLOW_START)
    return Problem(table, candidates, Noise(sd=sd), THREE_MINUTES_S, seed, switch_sd=sd)


def _planted(
    rng: np.random.Generator, candidates: Sequence[Candidate], group_of: Mapping[int, str]
) -> dict[frozenset[str], float]:
    """Of each group: a pair that helps only together, one that hurts together, or neither."""
    planted = {}
    for name in sorted(set(group_of.values())):
        those = [
            one for one in candidates if group_of.get(int(one.setting.knob.removeprefix("knob"))) == name
        ]
        across = [
            pair for pair in itertools.combinations(those, 2) if pair[0].setting.knob != pair[1].setting.knob
        ]
        if across:
            first, second = across[int(rng.integers(len(across)))]
            size = float(rng.choice([0.0, 0.10, 0.15, -0.10, -0.15]))
            planted[frozenset({first.id, second.id})] = size
    return planted


def _failing(rng: np.random.Generator, candidates: Sequence[Candidate]) -> dict[frozenset[str], Ended]:
    ends: dict[frozenset[str], Ended] = {}
    for one in candidates:
        if rng.random() < 0.05:
            ends[frozenset({one.id})] = "out-of-memory" if rng.random() < 0.5 else "failed"
    return ends


# Recorded tables


def recorded(path: Path, seed: int, share: float) -> Problem:
    """A budget of `share` of what the whole table took once."""
    raw = json.loads(path.read_text())
    # The baseline's own values stand in no arm's key.
    tried = {id_ for key in raw["arms"] for id_ in ids_of(key)}
    candidates = [
        candidate(
            text,
            needs_warm_cache=knob == "compile.mode",
            in_process=not knobs.why_not_switched(knobs.parse(text)),
        )
        for knob, values in raw["knobs"].items()
        for value in values
        if (text := f"{knob}={_spelled(value)}") in tried
    ]
    table = Recorded(raw["arms"], raw["run_s"])
    num_runs = sum(map(len, raw["arms"].values()))
    return Problem(table, candidates, Noise(sd=0.0), share * num_runs * raw["run_s"], seed)


def _spelled(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
