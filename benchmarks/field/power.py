"""How often the protocols of five tools find a gain that is there, and one that is not, at equal numbers of
starts.

    python -m benchmarks.field.power [--num 20000] [--seed 0] [--out FILE]

All of a row judge the same simulated runs, which are those of benchmarks/false_verdicts.py: log-normal, in
pairs. A start is a run of the command.

- dynotune: the shipped `judge`, asked at every look; two of its starts are pilots;
- train-doctor 0.2.0: as its stats.py and api.py have it: one run of each arm is discarded; pairs in which a
  run is a stall are set aside, a quarter of them at most; the interval of the median ratio has to lie beyond
  2%, and four pairs have to be left;
- pytorch-autotune 2.0.0: the faster of one measurement each, where it is faster by 3%, its noise floor;
- slowai 0.10.0: the faster of one measurement each.

TraceML and AITune judge no change of a training command.
"""

from __future__ import annotations

import argparse
import collections
import math
import multiprocessing
import os
import random
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.false_verdicts import CHUNK, Noise, Scenario, at_looks, normal, pairs_of, rare_stalls
from dynotune.schema.comparison import Pair
from lab.provenance import RESULTS
from lab.result_file import opened

EFFECTS = (1.0, 1.03, 1.10)
NOISES: dict[str, tuple[Noise, float]] = {
    "noise 1%": (normal, 0.01),
    "noise 2%": (normal, 0.02),
    "noise 5%": (normal, 0.05),
    "noise 2%, stalls of 5 to 50% in 3% of runs": (rare_stalls, 0.02),
}
"""Of the log ratio of a pair."""
MOST_PAIRS = 11
CLEAR = 0.02
LEAST_PAIRS = 4
NUM_DRAWS = 400
"""Of a bootstrap: its own makes 10,000 of them, which changes shares by less than half a percent."""


def dynotune(pairs: Sequence[Pair], num: int, speedup: float) -> tuple[str, int]:
    scenario = Scenario("", normal, speedup=speedup, max_pairs=num)
    judged = at_looks(scenario, list(pairs[:num]), None)
    return str(judged.verdict), 2 + 2 * judged.num_pairs


def train_doctor(pairs: Sequence[Pair], num: int, speedup: float) -> tuple[str, int]:
    del speedup
    taken = pairs[:num]
    stalled = [
        one or other
        for one, other in zip(
            stalls_of([1 / pair.baseline_s for pair in taken]),
            stalls_of([1 / pair.candidate_s for pair in taken]),
            strict=True,
        )
    ]
    if not 0 < sum(stalled) <= num // 4 or num - sum(stalled) < 3:
        stalled = [False] * num
    logs = [
        math.log(pair.baseline_s / pair.candidate_s)
        for pair, out in zip(taken, stalled, strict=True)
        if not out
    ]
    low, high = interval_of_median(logs)
    verdict = "undecided"
    if len(logs) >= LEAST_PAIRS:
        if math.exp(low) > 1 + CLEAR:
            verdict = "faster"
        elif math.exp(high) < 1 - CLEAR:
            verdict = "slower"
    return verdict, 2 + 2 * num


def stalls_of(throughputs: Sequence[float]) -> list[bool]:
    """Runs far slower than the others of their arm: under half the median and beyond four scaled median
    deviations, or under a quarter."""
    logs = [math.log(one) for one in throughputs]
    middle = statistics.median(logs)
    deviation = 1.4826 * statistics.median(abs(one - middle) for one in logs)
    limit = min(max(math.log(2.0), 4.0 * deviation), math.log(4.0))
    return [middle - one > limit for one in logs]


def interval_of_median(logs: Sequence[float]) -> tuple[float, float]:
    """95%, by a percentile bootstrap; of five values or fewer that is their range."""
    if len(logs) <= 5:
        return min(logs), max(logs)
    lot = random.Random(0)
    medians = sorted(statistics.median(lot.choices(logs, k=len(logs))) for _ in range(NUM_DRAWS))
    return medians[int(0.025 * NUM_DRAWS)], medians[int(0.975 * NUM_DRAWS)]


def by_one_measurement(floor: float) -> Callable[[Sequence[Pair], int, float], tuple[str, int]]:
    def judged(pairs: Sequence[Pair], num: int, speedup: float) -> tuple[str, int]:
        return "faster" if pairs[0].baseline_s > floor * pairs[0].candidate_s else "undecided", 2

    return judged


PROTOCOLS: dict[str, tuple[Callable[[Sequence[Pair], int, float], tuple[str, int]], int]] = {
    "dynotune, at most 5 pairs": (dynotune, 5),
    "train-doctor, 5 pairs": (train_doctor, 5),
    "dynotune, at most 11 pairs": (dynotune, 11),
    "train-doctor, 11 pairs": (train_doctor, 11),
    "pytorch-autotune": (by_one_measurement(1.03), 1),
    "slowai": (by_one_measurement(1.0), 1),
}


def simulate(job: tuple[str, float, int, int, int]) -> tuple[str, float, dict[str, collections.Counter[str]]]:
    """One chunk of a row: of each protocol its verdicts, and the starts that it took."""
    name, speedup, chunk, num, seed = job
    noise, sd = NOISES[name]
    draw = np.random.default_rng([seed, list(NOISES).index(name), int(100 * speedup), chunk])
    log_s = sd / math.sqrt(2) * noise(draw, num, 2 * MOST_PAIRS)
    scenario = Scenario(name, noise, sd=sd, speedup=speedup, max_pairs=MOST_PAIRS)
    counted = {protocol: collections.Counter[str]() for protocol in PROTOCOLS}
    for number in range(num):
        stall = np.zeros_like(log_s[number])
        pairs = list(pairs_of(scenario, log_s[number], stall, seed=chunk * CHUNK + number))
        for protocol, (judge, most) in PROTOCOLS.items():
            verdict, starts = judge(pairs, most, speedup)
            counted[protocol][verdict] += 1
            counted[protocol]["starts"] += starts
    return name, speedup, counted


def simulated(num: int, seed: int, processes: int) -> list[dict[str, object]]:
    jobs = [
        (name, speedup, at // CHUNK, min(CHUNK, num - at), seed)
        for name in NOISES
        for speedup in EFFECTS
        for at in range(0, num, CHUNK)
    ]
    counted: dict[tuple[str, float, str], collections.Counter[str]] = collections.defaultdict(
        collections.Counter
    )
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        for name, speedup, chunk in pool.imap_unordered(simulate, jobs):
            for protocol, some in chunk.items():
                counted[name, speedup, protocol] += some
    return [
        {
            "noise": name,
            "speedup": speedup,
            "protocol": protocol,
            **{verdict: some[verdict] / num for verdict in ("faster", "slower", "same", "undecided")},
            "mean_starts": some["starts"] / num,
        }
        for (name, speedup, protocol), some in sorted(counted.items())
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--num", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS / "field_power.json")
    given = parser.parse_args()
    rows = simulated(given.num, given.seed, len(os.sched_getaffinity(0)))
    with opened(given.out) as result:
        result.update(num=given.num, seed=given.seed, protocols=rows)
    for row in rows:
        print(f"{row['noise']:44} {row['speedup']:.2f} {row['protocol']:28} faster {row['faster']:6.1%} "
              f"slower {row['slower']:6.1%} starts {row['mean_starts']:.1f}")  # fmt: skip


if __name__ == "__main__":
    main()
