"""Pins what pairs are judged to say, on drawn and recorded inputs: a redesign of the runners moves no answer.

A change that is meant to move answers writes the file anew:
`PYTHONPATH=src:. python tests/measure/comparison/test_pinned.py`.
"""

from __future__ import annotations

import json
import math
import random
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dynotune.measure.comparison import judge, launched, orders
from dynotune.schema.comparison import BaselineShift, BlocksAnswer, Comparison, Pair, Spread
from tests.fakes import of_run

ROWS = tomllib.loads((Path(__file__).parents[2] / "search" / "replayed_launched.toml").read_text())["rows"]
"""Arms that were launched, as the package kept them when the answers were recorded: more rows move the
answers."""


@pytest.fixture(autouse=True)
def rows_as_recorded(monkeypatch):
    rows = tuple(msgspec.convert(ROWS, list[launched.Launched]))
    monkeypatch.setattr(launched, "rows", lambda: rows)


FILE = Path(__file__).with_name("pinned.json")


def drawn(seed: int) -> tuple[list[Pair], dict[str, Any]]:
    draw = random.Random(seed)
    max_pairs = draw.choice([4, 6, 8, 12])
    gain, sd = draw.choice([0.0, 0.005, 0.03, 0.1, -0.05]), draw.choice([0.001, 0.01, 0.04])
    num = draw.randint(0, max_pairs)
    pairs = [
        Pair(first, 1.0, math.exp(draw.gauss(-gain, sd)), lane=0) for first in orders(max_pairs, seed)[:num]
    ]
    how = {
        "seen": draw.choice([None, None, Spread(sd**2, 4), Spread(4 * sd**2, 2)]),
        "margin": draw.choice([0.01, 0.03]),
        "max_pairs": max_pairs,
        "num_voided": draw.choice([0, 0, 1, 3]),
        "precision": draw.choice([math.inf, 0.5, 2.0]),
        "error": draw.choice([0.05, 0.025]),
        "ended": draw.random() < 0.5,
    }
    return pairs, how


def after_blocks(seed: int) -> Comparison:
    """An answer of fresh pairs that followed blocks; of every third the blocks only choose, or are of
    dynotune 0.2."""
    draw = random.Random(1000 + seed)
    gain, sd = draw.choice([0.0, 0.03, 0.2, -0.1]), draw.choice([0.002, 0.02])

    def made(num: int, spread: float, more: float) -> list[Pair]:
        return [Pair(first, 1.0, math.exp(draw.gauss(-gain - more, spread))) for first in orders(num, seed)]

    fast = made(8, sd / 2, draw.choice([0.0, 0.0, 0.3]))
    told = judge(fast, max_pairs=8, ended=True)
    blocks = BlocksAnswer(
        verdict=told.verdict,
        speedup=told.speedup,
        ci=told.ci,
        pairs=fast,
        baseline_shift=None if seed % 5 == 0 else BaselineShift(ratio=1.0, ci=(0.99, 1.01), num_blocks=8),
        only_chooses="The baseline shifted." if seed % 3 == 0 else "",
    )
    pairs = made(draw.randint(0, 4), sd, 0.0)
    seen = launched.spread(draw.choice([None, Spread(sd**2, 3)]))
    empty = of_run(
        Comparison, id="c", candidate_settings=[], max_pairs=4, seen=seen, blocks=blocks, pairs=pairs
    )
    return judge(pairs, seen=seen, max_pairs=4, precision=0.5, ended=True).conclude(empty)


def within(seed: int) -> Comparison:
    """An answer of blocks alone, with more of them than a launch would have pairs."""
    draw = random.Random(2000 + seed)
    gain, sd = draw.choice([0.0, 0.05, 0.3, -0.3]), draw.choice([0.002, 0.02])
    pairs = [Pair(first, 1.0, math.exp(draw.gauss(-gain, sd))) for first in orders(8, seed)]
    shift = None if seed % 7 == 0 else BaselineShift(ratio=1.0, ci=(0.99, 1.01), num_blocks=8)
    empty = of_run(Comparison, id="c", candidate_settings=[], max_pairs=8, within=True, pairs=pairs)
    return judge(pairs, max_pairs=8, ended=True).conclude(
        empty, baseline_shift=shift, only_chooses="The baseline shifted." if seed % 11 == 0 else ""
    )


def answers() -> dict[str, Any]:
    judged = []
    for seed in range(80):
        pairs, how = drawn(seed)
        judged.append(msgspec.to_builtins(judge(pairs, **how)))
    stated = [launched.stated(after_blocks(seed)) for seed in range(40)]
    proved = [launched.proved(within(seed)) for seed in range(40)]
    return json.loads(
        json.dumps({"judged": judged, "stated": list(map(_told, stated)), "proved": list(map(_told, proved))})
    )


def _told(found: Comparison) -> list[Any]:
    return [found.verdict, found.speedup, found.ci, found.num_pairs, found.reason, found.pooled]


PINNED: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {}


def alike(found: Any, pinned: Any) -> bool:
    """Whether both are equal, numbers to 9 digits."""
    match found:
        case dict():
            return found.keys() == pinned.keys() and all(alike(found[key], pinned[key]) for key in found)
        case list():
            return len(found) == len(pinned) and all(map(alike, found, pinned))
        case float():
            return isinstance(pinned, float) and math.isclose(found, pinned, rel_tol=1e-9, abs_tol=1e-12)
    return bool(found == pinned)


@pytest.mark.parametrize("kind", ["judged", "stated", "proved"])
def test_answers_are_as_recorded_when_the_same_pairs_are_given(kind: str) -> None:
    found = answers()[kind]
    assert len(found) == len(PINNED[kind])
    assert [at for at, both in enumerate(zip(found, PINNED[kind], strict=True)) if not alike(*both)] == []


if __name__ == "__main__":
    FILE.write_text(json.dumps(answers(), indent=1) + "\n")
