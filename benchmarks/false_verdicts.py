"""How often `compare` calls a difference that is not there, and how often it finds one that is.

Simulated, with the shipped `judge`, asked at every look as the protocol does:

    python benchmarks/false_verdicts.py

Real, comparing a command with itself (a variable that nobody reads; within one run, a setting that does
nothing there):

    python benchmarks/false_verdicts.py --real 20 --command python examples/train_small.py
    python benchmarks/false_verdicts.py --real 40 --nothing matmul.fp32_precision=high \\
        --options '--in-process only' \\
        --command python examples/train_small.py

`--lanes N` makes N of them at a time, each on cores of its own.
"""

from __future__ import annotations

import argparse
import collections
import importlib.metadata
import json
import math
import multiprocessing
import os
import platform
import queue
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from dynotune.measure.comparison import looks, orders, schedule, stats
from dynotune.schema import document
from dynotune.schema.comparison import MAX_PAIRS, PRECISION, ArmName, Comparison, Drawn, Pair, Spread
from dynotune.search.confirmation import MOST_SEEN_DF, NOISIER
from dynotune.search.fit import WIDENED

RESULTS = Path(__file__).parent / "results"
CHUNK = 1000
BLOCKS: dict[ArmName, str] = {"baseline": "ABBA", "candidate": "BAAB"}

Array = npt.NDArray[np.float64]
Noise = Callable[[np.random.Generator, int, int], Array]


def normal(draw: np.random.Generator, num: int, runs: int) -> Array:
    return draw.standard_normal((num, runs))


def student_t3(draw: np.random.Generator, num: int, runs: int) -> Array:
    return draw.standard_t(3, (num, runs)) / math.sqrt(3)


def linear_drift(draw: np.random.Generator, num: int, runs: int) -> Array:
    """Every run slower than the one before by 0.35 of the noise: 12% over a comparison at sd 2%."""
    return normal(draw, num, runs) + 0.35 * np.arange(runs)


def random_walk(draw: np.random.Generator, num: int, runs: int) -> Array:
    return normal(draw, num, runs) + 0.7 * np.cumsum(normal(draw, num, runs), axis=1)


def stalls(draw: np.random.Generator, num: int, runs: int) -> Array:
    """One run in ten is longer by 3.5 to 21 times the noise: by 5 to 30% at sd 2% between pairs."""
    hit = draw.random((num, runs)) < 0.1
    return normal(draw, num, runs) + hit * draw.uniform(3.5, 21, (num, runs))


def rare_stalls(draw: np.random.Generator, num: int, runs: int) -> Array:
    hit = draw.random((num, runs)) < 0.03
    return normal(draw, num, runs) + hit * draw.uniform(3.5, 35, (num, runs))


def autocorrelated(rho: float) -> Noise:
    """Each run resembles the one before."""

    def noise(draw: np.random.Generator, num: int, runs: int) -> Array:
        steps = normal(draw, num, runs)
        for run in range(1, runs):
            steps[:, run] = rho * steps[:, run - 1] + math.sqrt(1 - rho**2) * steps[:, run]
        return steps

    return noise


def two_modes(share: float, rest: float = 0.3) -> Noise:
    """That share of runs lands in a mode slower by 3, with `rest` of other noise."""

    def noise(draw: np.random.Generator, num: int, runs: int) -> Array:
        return rest * normal(draw, num, runs) + 3 * (draw.random((num, runs)) < share)

    return noise


def lasting_modes(draw: np.random.Generator, num: int, runs: int) -> Array:
    """Two modes again; a run leaves its predecessor's with probability 0.3."""
    switched = np.cumsum(draw.random((num, runs)) < 0.3, axis=1) + draw.integers(0, 2, (num, 1))
    return 0.3 * normal(draw, num, runs) + 3 * (switched % 2)


def second_is_slower(draw: np.random.Generator, num: int, runs: int) -> Array:
    """The second run of every pair is slower by 3.5 times the noise: by 5% at sd 2% between pairs."""
    return normal(draw, num, runs) + 3.5 * (np.arange(runs) % 2)


def everything(draw: np.random.Generator, num: int, runs: int) -> Array:
    """Heavy tails, autocorrelation, drift and rare stalls at once."""
    tails = student_t3(draw, num, runs) + autocorrelated(0.4)(draw, num, runs)
    stalled = (draw.random((num, runs)) < 0.03) * draw.uniform(3.5, 21, (num, runs))
    return tails / math.sqrt(2) + stalled + 0.1 * np.arange(runs)


def recurring(least: float, most: float) -> Noise:
    """A disturbance of twice the noise that recurs every `least` to `most` runs, at a phase by lot."""

    def noise(draw: np.random.Generator, num: int, runs: int) -> Array:
        period, phase = draw.uniform(least, most, (num, 1)), draw.uniform(0, 2 * math.pi, (num, 1))
        return normal(draw, num, runs) + 2 * np.sin(2 * math.pi * np.arange(runs) / period + phase)

    return noise


def disturbed(share: float, most: float) -> Noise:
    """That share of runs is longer, by up to `most` at sd 2%: another job comes and goes, whichever arm
    runs."""

    def noise(draw: np.random.Generator, num: int, runs: int) -> Array:
        hit = draw.random((num, runs)) < share
        longer = np.log1p(draw.uniform(0, most, (num, runs))) / (0.02 / math.sqrt(2))
        return normal(draw, num, runs) + hit * longer

    return noise


class Scenario(NamedTuple):
    """What is simulated, and what is promised of it.

    Args:
        sd: of the log ratio of a pair, were all noise of the unit size that `noise` has at its core.
        speedup: true baseline over candidate time.
        ends_after: pairs, after which the time is up; None where it lasts for all.
        seen: how noisy the runs were from which the spread is known, times those of the pairs; None where it
            is not. As in a tune, with four degrees of freedom, and widened for runs that are normal after
            all.
        candidate_stalls: one candidate run in ten is longer by 5 to 30%, and no baseline run is.
        baseline_once: one run of the baseline, and no other, is longer by up to this share.
        precision: pairs go on until the interval is so narrow.
        error: rate of calling equals different that is allowed.
        shows_noise: whether blocks tell their repeated stretches, as they did not before decision 61.
        differs: standard deviation of the gain's logarithm from block to block.
        unit: pairs of runs; or blocks of four stretches, each as noisy as a run is.
        at_most, at_least: a verdict and the promised share of it; `false` is faster and slower together.
    """

    name: str
    noise: Noise
    sd: float = 0.02
    speedup: float = 1.0
    max_pairs: int = MAX_PAIRS
    candidate_stalls: bool = False
    ends_after: int | None = None
    seen: float | None = None
    baseline_once: float = 0.0
    precision: float = math.inf
    error: float = 0.05
    shows_noise: bool = True
    differs: float = 0.0
    unit: Drawn = "pair"
    at_most: tuple[str, float] | None = None
    at_least: tuple[str, float] | None = None


FALSE = ("false", 0.05)
SCENARIOS = (
    Scenario("A/A, normal", normal, at_most=FALSE),
    Scenario("A/A, normal, sd 1%", normal, sd=0.01, at_most=FALSE, at_least=("same", 0.70)),
    Scenario("A/A, heavy tails (t3)", student_t3, at_most=FALSE),
    Scenario("A/A, linear drift", linear_drift, at_most=FALSE),
    Scenario("A/A, random walk", random_walk, at_most=FALSE),
    Scenario("A/A, stalls of 5 to 30% in 10% of runs", stalls, sd=0.014, at_most=FALSE),
    Scenario("A/A, stalls of 5 to 50% in 3% of runs", rare_stalls, sd=0.014, at_most=FALSE),
    Scenario("A/A, autocorrelation 0.3", autocorrelated(0.3), at_most=FALSE),
    Scenario("A/A, autocorrelation 0.5", autocorrelated(0.5), at_most=FALSE),
    Scenario("A/A, autocorrelation 0.7", autocorrelated(0.7), at_most=FALSE),
    Scenario("A/A, two modes, half of the runs each", two_modes(0.5), at_most=FALSE),
    Scenario("A/A, two modes, hardly other noise", two_modes(0.5, rest=0.1), at_most=FALSE),
    Scenario("A/A, two modes, a fifth in the slow one", two_modes(0.2), at_most=FALSE),
    Scenario("A/A, two modes that last", lasting_modes, at_most=FALSE),
    Scenario("A/A, second run of a pair 5% slower", second_is_slower, at_most=FALSE),
    Scenario("A/A, tails, autocorrelation, drift, stalls", everything, at_most=FALSE),
    Scenario("A/A, at most 3 pairs", normal, max_pairs=3, at_most=FALSE),
    Scenario("A/A, at most 4 pairs", normal, max_pairs=4, at_most=FALSE),
    Scenario("A/A, at most 5 pairs", normal, max_pairs=5, at_most=FALSE),
    Scenario("A/A, at most 6 pairs", normal, max_pairs=6, at_most=FALSE),
    Scenario("A/A, at most 8 pairs", normal, max_pairs=8, at_most=FALSE),
    Scenario("A/A, at most 8 pairs, autocorrelation 0.4", autocorrelated(0.4), max_pairs=8, at_most=FALSE),
    Scenario("A/A, at most 4 pairs, two modes", two_modes(0.5), max_pairs=4, at_most=FALSE),
    Scenario("A/A, at most 6 pairs, two modes", two_modes(0.5), max_pairs=6, at_most=FALSE),
    Scenario("A/A, at most 11 pairs", normal, max_pairs=11, at_most=FALSE),
    *(
        Scenario(f"A/A, at most {num} pairs{name}", noise, max_pairs=num, at_most=FALSE)
        for num in (16, 24, 48)
        for name, noise in (
            ("", normal),
            (", two modes", two_modes(0.5)),
            (", correlation 0.5", autocorrelated(0.5)),
        )
    ),
    *(
        Scenario(f"{name}, until the interval is a fifth of it", noise, speedup=speedup, precision=PRECISION)
        for name, noise, speedup in (
            ("A/A, heavy tails (t3)", student_t3, 1.0),
            ("10% faster", normal, 1.1),
            ("twice as fast", normal, 2.0),
            ("twice as fast, heavy tails (t3)", student_t3, 2.0),
            ("half as fast, two modes", two_modes(0.5), 0.5),
        )
    ),
    Scenario("3% faster, normal", normal, speedup=1.03, at_least=("faster", 0.90)),
    Scenario("3% slower, normal", normal, speedup=1 / 1.03, at_least=("slower", 0.90)),
    Scenario("3% faster, heavy tails (t3)", student_t3, speedup=1.03, at_least=("faster", 0.90)),
    Scenario("3% faster, linear drift", linear_drift, speedup=1.03, at_least=("faster", 0.90)),
    Scenario("3% faster, second run 5% slower", second_is_slower, speedup=1.03, at_least=("faster", 0.90)),
    Scenario("3% faster, stalls in 3% of runs", rare_stalls, sd=0.014, speedup=1.03),
    Scenario("3% faster, stalls in 10% of runs", stalls, sd=0.014, speedup=1.03),
    Scenario("differs by the margin (1%), sd 1%", normal, sd=0.01, speedup=1.01, at_most=("same", 0.05)),
    Scenario("differs by the margin (1%), sd 0.5%", normal, sd=0.005, speedup=1.01, at_most=("same", 0.05)),
    Scenario("only the candidate stalls, sd 0.5%", normal, sd=0.005, candidate_stalls=True),
    Scenario("only the candidate stalls, sd 2%", normal, candidate_stalls=True),
    Scenario("A/A, time up after 5 of 6 pairs", normal, max_pairs=6, ends_after=5, at_most=FALSE),
    Scenario(
        "A/A, time up after 5 of 6 pairs, two modes", two_modes(0.5), max_pairs=6, ends_after=5, at_most=FALSE
    ),
    Scenario("A/A, time up after 7 of 8 pairs", normal, max_pairs=8, ends_after=7, at_most=FALSE),
    Scenario("A/A, time up after 9 of 12 pairs", normal, ends_after=9, at_most=FALSE),
    Scenario("A/A, time up after 11 of 12 pairs", normal, ends_after=11, at_most=FALSE),
    Scenario(
        "A/A, time up after 11 of 12, autocorrelation 0.5", autocorrelated(0.5), ends_after=11, at_most=FALSE
    ),
    Scenario(
        "A/A, time up after 11 of 12, two modes", two_modes(0.5, rest=0.1), ends_after=11, at_most=FALSE
    ),
    Scenario("3% faster, time up after 7 of 8 pairs", normal, speedup=1.03, max_pairs=8, ends_after=7),
    *(
        Scenario(f"A/A, at most {num} pairs, spread seen", normal, max_pairs=num, seen=1.0, at_most=FALSE)
        for num in (2, 3, 4, 8, 12)
    ),
    Scenario(
        "A/A, at most 2 pairs, spread seen, two modes", two_modes(0.5), max_pairs=2, seen=1.53, at_most=FALSE
    ),
    Scenario(
        "A/A, at most 2 pairs, spread seen, heavy tails (t3)",
        student_t3,
        max_pairs=2,
        seen=1.0,
        at_most=FALSE,
    ),
    *(
        Scenario(
            f"A/A, at most {num} pairs, spread seen of runs half as noisy",
            normal,
            max_pairs=num,
            seen=0.5,
            at_most=FALSE,
        )
        for num in (2, 3, 4, 8, 12)
    ),
    *(
        Scenario(
            f"10% faster, at most {num} pairs, spread {'seen' if seen else 'not seen'}",
            normal,
            speedup=1.1,
            max_pairs=num,
            seen=seen,
        )
        for num in (2, 3, 4)
        for seen in (None, 1.0)
    ),
    *(
        Scenario(
            f"{name}, {told} of the runs disturbed by up to {most:.0%}, at most {num} pairs",
            disturbed(share, most),
            speedup=speedup,
            max_pairs=num,
            at_most=FALSE if speedup == 1 else None,
        )
        for name, speedup in (("A/A", 1.0), ("10% faster", 1.1), ("twice as fast", 2.0))
        for told, share in (("a fifth", 0.2), ("half", 0.5))
        for most in (0.1, 0.5)
        for num in (4, 12)
    ),
    *(
        Scenario(
            f"A/A, one run of the baseline alone disturbed by up to 50%, at most {num} pairs",
            normal,
            max_pairs=num,
            baseline_once=0.5,
            at_most=FALSE,
        )
        for num in (4, 6, 12)
    ),
    *(
        Scenario(f"A/A, at most {num} blocks, {name}", noise, max_pairs=num, unit="block", at_most=FALSE)
        for name, noise in (
            ("normal", normal),
            ("heavy tails (t3)", student_t3),
            ("linear drift", linear_drift),
            ("random walk", random_walk),
            ("autocorrelation 0.4", autocorrelated(0.4)),
            ("autocorrelation 0.7", autocorrelated(0.7)),
            ("two modes that last", lasting_modes),
            ("stalls in 10% of stretches", stalls),
            ("everything", everything),
            ("a disturbance that recurs every 6 to 10 stretches", recurring(6, 10)),
            ("a disturbance that recurs every 3 to 5 stretches", recurring(3, 5)),
        )
        for num in (2, 3, 4, 6, 12)
    ),
    *(
        Scenario(
            f"{told}, at most {num} blocks, a gain that differs by {sd:.0%} between blocks",
            normal,
            speedup=speedup,
            differs=sd,
            max_pairs=num,
            unit="block",
        )
        for told, speedup, sd in (
            ("A/A", 1.0, 0.02),
            ("A/A", 1.0, 0.1),
            ("1.3 times as fast", 1.3, 0.02),
            ("1.3 times as fast", 1.3, 0.1),
        )
        for num in (2, 3, 4, 12)
    ),
    *(
        Scenario(
            f"{name}, at most {num} blocks, sd 12%, error {error:.1%}{'' if shows else ', stretches unseen'}",
            normal,
            sd=0.12,
            speedup=speedup,
            max_pairs=num,
            unit="block",
            error=error,
            shows_noise=shows,
        )
        for error, shows in ((0.05, True), (0.05 / 3, True), (0.05 / 3, False))
        for name, speedup in (("1.5 times as fast", 1.5), ("twice as fast", 2.0), ("2.7 times as fast", 2.7))
        for num in (2, 3, 4)
    ),
    *(
        Scenario(f"A/A, at most 3 pairs, {name}", noise, max_pairs=3, at_most=FALSE)
        for name, noise in (
            ("heavy tails (t3)", student_t3),
            ("autocorrelation 0.5", autocorrelated(0.5)),
            ("two modes", two_modes(0.5)),
            ("two modes, hardly other noise", two_modes(0.5, rest=0.1)),
            ("second run of a pair 5% slower", second_is_slower),
        )
    ),
    Scenario("2.9 times as fast, at most 3 pairs, sd 10%", normal, sd=0.1, speedup=2.9, max_pairs=3),
)


def simulate(job: tuple[int, int, int, int]) -> tuple[int, collections.Counter[str], int, int]:
    """Judge one chunk: (scenario's index, its verdicts, pairs used, intervals that hold the truth)."""
    index, chunk, num, seed = job
    scenario = SCENARIOS[index]
    draw = np.random.default_rng([seed, index, chunk])
    num_values = {"pair": 2, "block": len(BLOCKS["baseline"])}[scenario.unit] * scenario.max_pairs
    log_s = scenario.sd / math.sqrt(2) * scenario.noise(draw, num, num_values)
    stalled = draw.random(log_s.shape) < 0.1
    stall = stalled * np.log1p(draw.uniform(0.05, 0.30, log_s.shape)) * scenario.candidate_stalls
    verdicts: collections.Counter[str] = collections.Counter()
    num_pairs = num_covered = 0
    variance = NOISIER * (scenario.sd * WIDENED * (scenario.seen or 0.0)) ** 2
    spreads = variance * draw.chisquare(MOST_SEEN_DF, num) / MOST_SEEN_DF
    differs = scenario.differs * draw.standard_normal((num, scenario.max_pairs))
    for number in range(num):
        seen = None if scenario.seen is None else Spread(float(spreads[number]), MOST_SEEN_DF)
        gains = scenario.speedup * np.exp(differs[number])
        pairs = list(pairs_of(scenario, log_s[number], stall[number], gains, seed=chunk * CHUNK + number))
        if scenario.baseline_once:
            at, longer = int(draw.integers(len(pairs))), 1 + draw.uniform(0, scenario.baseline_once)
            pairs[at] = msgspec.structs.replace(pairs[at], baseline_s=pairs[at].baseline_s * longer)
        judgement = at_looks(scenario, pairs, seen)
        verdicts[str(judgement.verdict)] += 1
        num_pairs += judgement.num_pairs
        low, high = judgement.ci or (0.0, math.inf)
        num_covered += low <= scenario.speedup <= high
    return index, verdicts, num_pairs, num_covered


def at_looks(scenario: Scenario, pairs: list[Pair], seen: Spread | None) -> stats.SequentialResult:
    last = scenario.ends_after or scenario.max_pairs
    how: dict[str, Any] = {
        "max_pairs": scenario.max_pairs,
        "precision": scenario.precision,
        "unit": scenario.unit,
        "fits_order": scenario.unit == "pair",
        "error": scenario.error,
    }
    for look in [look for look in schedule.looks(scenario.max_pairs) if look < last]:
        judgement = stats.judge(pairs[:look], seen=seen, **how)
        if judgement.finished:
            return judgement
    return stats.judge(pairs[:last], seen=seen, **how, ended=True)


def pairs_of(scenario: Scenario, log_s: Array, stall: Array, gains: Array, seed: int) -> Iterator[Pair]:
    """Pairs in order of time, each of two runs or of a block's four stretches. `gains`: of each."""
    for k, first in enumerate(orders(scenario.max_pairs, seed)):
        order = BLOCKS[first] if scenario.unit == "block" else BLOCKS[first][:2]
        own_s, longer = (each.reshape(-1, len(order))[k] for each in (log_s, stall))
        base = [at for at, arm in enumerate(order) if arm == "A"]
        cand = [at for at, arm in enumerate(order) if arm == "B"]
        baseline_s = np.exp(own_s[base])
        candidate_s = np.exp(own_s[cand] + longer[cand]) / gains[k]
        repeats = tuple(float(np.log(two[0] / two[1])) for two in (baseline_s, candidate_s) if len(two) == 2)
        repeats = repeats if scenario.shows_noise else ()
        yield Pair(first, float(baseline_s.mean()), float(candidate_s.mean()), repeats=repeats)


def run_simulation(num: int, seed: int, processes: int, units: Sequence[Drawn]) -> list[dict[str, object]]:
    asked = [index for index, scenario in enumerate(SCENARIOS) if scenario.unit in units]
    jobs = [
        (index, at // CHUNK, min(CHUNK, num - at), seed) for index in asked for at in range(0, num, CHUNK)
    ]
    verdicts = [collections.Counter[str]() for _ in SCENARIOS]
    num_pairs, num_covered = [0] * len(SCENARIOS), [0] * len(SCENARIOS)
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        for index, counted, used, covered in pool.imap_unordered(simulate, jobs):
            verdicts[index] += counted
            num_pairs[index] += used
            num_covered[index] += covered
    return [_row(SCENARIOS[at], verdicts[at], num_pairs[at], num_covered[at], num) for at in asked]


def _row(
    scenario: Scenario, verdicts: collections.Counter[str], num_pairs: int, num_covered: int, num: int
) -> dict[str, object]:
    share = {name: verdicts[name] / num for name in ("faster", "slower", "same", "undecided")}
    share["false"] = share["faster"] + share["slower"]
    kept = True
    if scenario.at_most:
        kept &= share[scenario.at_most[0]] <= scenario.at_most[1]
    if scenario.at_least:
        kept &= share[scenario.at_least[0]] >= scenario.at_least[1]
    share.pop("false")
    return {
        "scenario": scenario.name,
        "max_pairs": scenario.max_pairs,
        "sd": scenario.sd,
        "seen": scenario.seen,
        "speedup": scenario.speedup,
        **share,
        "mean_pairs": num_pairs / num,
        # Says nothing where the candidate stalls: what its speedup is depends on how one averages.
        "ci_holds_truth": None if scenario.candidate_stalls else num_covered / num,
        "promised": {"at_most": scenario.at_most, "at_least": scenario.at_least},
        "kept": kept if scenario.at_most or scenario.at_least else None,
    }


def print_table(rows: list[dict[str, object]]) -> None:
    print("| scenario | faster | slower | same | undecided | pairs | interval holds | promise |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        shares = " | ".join(f"{row[name]:.1%}" for name in ("faster", "slower", "same", "undecided"))
        holds = "" if row["ci_holds_truth"] is None else f"{row['ci_holds_truth']:.1%}"
        kept = {True: "kept", False: "**broken**", None: ""}[row["kept"]]
        print(f"| {row['scenario']} | {shares} | {row['mean_pairs']:.1f} | {holds} | {kept} |")


def run_real(num: int, lanes: int, command: list[str], nothing: str, options: list[str]) -> dict[str, object]:
    """Compare `command` with itself `num` times; every comparison as it falls."""
    cores = sorted(os.sched_getaffinity(0))
    size = len(cores) // lanes
    free = queue.SimpleQueue[list[int]]()
    for lane in range(lanes):
        free.put(cores[lane * size : (lane + 1) * size])

    def compare(number: int) -> Comparison | None:
        own = free.get()
        try:
            # A seed of its own: the same orders twenty times would be one draw, not twenty.
            call = ["dynotune", "compare", nothing, "--seed", str(number), *options]
            words = [
                "taskset",
                "-c",
                ",".join(map(str, own)),
                sys.executable,
                "-m",
                *call,
                "--json",
                "-",
                "--",
            ]
            ran = subprocess.run([*words, *command], capture_output=True)
        finally:
            free.put(own)
        if ran.returncode != 0:
            print(
                f"{number:3d}  exit code {ran.returncode}: {ran.stderr.decode(errors='replace')[-500:]}",
                flush=True,
            )
            return None
        comparison = document.decode(ran.stdout, Comparison, name=f"comparison {number}")
        print(f"{number:3d}  {comparison.verdict}  {comparison.speedup}  {comparison.ci}", flush=True)
        return comparison

    with ThreadPoolExecutor(lanes) as pool:
        comparisons = [
            comparison for comparison in pool.map(compare, range(1, num + 1)) if comparison is not None
        ]
    counted = collections.Counter(str(comparison.verdict) for comparison in comparisons)
    false = counted["faster"] + counted["slower"]
    print(f"{false} of {len(comparisons)} called faster or slower: {dict(counted)}")
    return {
        "asked": num,
        "lanes": lanes,
        "cores_a_lane": size,
        "num": len(comparisons),
        "false": false,
        "verdicts": dict(counted),
        "comparisons": [
            {
                "verdict": comparison.verdict,
                "speedup": comparison.speedup,
                "ci": comparison.ci,
                "num_pairs": comparison.num_pairs,
                "num_voided": len(comparison.voided),
                "reason": comparison.reason,
                "pairs": [
                    {"first": pair.first, "baseline_s": pair.baseline_s, "candidate_s": pair.candidate_s}
                    for pair in comparison.pairs
                ],
            }
            for comparison in comparisons
        ],
    }


def provenance() -> dict[str, object]:
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "command": "python " + shlex.join(sys.argv),
        "hardware": {
            "cpu": models[0] if models else platform.machine(),
            "cores": len(os.sched_getaffinity(0)),
        },
        "versions": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in ("numpy", "scipy", "msgspec")},
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--num", type=int, default=20_000, help="simulated comparisons a scenario")
    parser.add_argument("--seed", type=int, default=20260)
    parser.add_argument("--blocks", action="store_true", help="only the rows of blocks within one run")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--without-safeguards", action="store_true", help="as first designed; written with --out alone"
    )
    parser.add_argument("--real", type=int, metavar="N", help="N real comparisons instead")
    parser.add_argument(
        "--nothing", default="env.DYNOTUNE_NOTHING=1", help="a setting without effect on the command"
    )
    parser.add_argument("--lanes", type=int, default=1, help="real comparisons at a time")
    parser.add_argument("--out", type=Path, help="where the result is written")
    parser.add_argument("--options", default="", help="for each `dynotune compare`, in one string")
    parser.add_argument("--command", nargs=argparse.REMAINDER, help="compared with itself; comes last")
    asked = parser.parse_args()
    if asked.real:
        if not asked.command:
            parser.error("--real needs --command")
        result = run_real(asked.real, asked.lanes, asked.command, asked.nothing, shlex.split(asked.options))
        out = asked.out or RESULTS / "real_same.json"
        out.write_text(json.dumps({**provenance(), **result}, indent=1) + "\n")
        return 0 if result["num"] == asked.real else 1
    if asked.without_safeguards:
        looks.SPENT = 1.0
        stats.ORDER_MAY_NARROW_FROM = 0
    started_s = time.monotonic()
    rows = run_simulation(
        asked.num, asked.seed, asked.processes, ["block"] if asked.blocks else ["pair", "block"]
    )
    print_table(rows)
    if asked.out or not asked.without_safeguards:
        result = {"num": asked.num, "seed": asked.seed, "wall_s": round(time.monotonic() - started_s, 1)}
        out = asked.out or RESULTS / f"false_verdicts{'_blocks' if asked.blocks else ''}.json"
        out.write_text(json.dumps({**provenance(), **result, "scenarios": rows}, indent=1) + "\n")
    return 1 if any(row["kept"] is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
