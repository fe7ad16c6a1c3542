"""How often a live run's interval of an arm holds the truth, and how often a good arm would be dropped;
simulated.

    python benchmarks/switch_interval.py [--times 2000]

A stretch's time has heavy-tailed noise of 2%, a drift that wanders, and now and then a stall.
"""

from __future__ import annotations

import argparse
import json
import math

import numpy as np

from dynotune.measure.live.switching import estimate
from dynotune.measure.live.turns import NUM_BLOCKS
from dynotune.schema.events import Block, Stretch
from lab.provenance import RESULTS

NOISE, REMEMBERED, NUM_ARMS = 0.02, 0.95, 4
MARGIN = 0.01
WORLDS = {
    "quiet": {"drift": 0.003, "stalls": 0.0},
    "drift": {"drift": 0.01, "stalls": 0.0},
    "stalls": {"drift": 0.01, "stalls": 0.02},
    "many stalls": {"drift": 0.01, "stalls": 0.1},
}


def blocks(draw: np.random.Generator, gain: float, *, drift: float, stalls: float) -> list[Block]:
    """Of an arm that is faster by `gain`, the logarithm of a ratio; the other arms take their turns
    between."""
    made, level = [], 0.0
    for number in range(NUM_BLOCKS):
        for _ in range(4 * (NUM_ARMS - 1)):
            level = REMEMBERED * level + drift * draw.standard_normal()
        order = "ABBA" if draw.random() < 0.5 else "BAAB"
        timed: dict[str, list[Stretch]] = {"A": [], "B": []}
        for which in order:
            level = REMEMBERED * level + drift * draw.standard_normal()
            seconds = math.exp(level + NOISE * draw.standard_t(3) / math.sqrt(3) - gain * (which == "B"))
            if draw.random() < stalls:
                seconds *= 1 + draw.exponential(0.5)
            timed[which].append(Stretch(seconds, 10, None))
        made.append(
            Block(
                arm=0,
                number=number,
                order=order,
                begin_s=0.0,
                end_s=1.0,
                baseline=timed["A"],
                candidate=timed["B"],
            )
        )
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=2000)
    args = parser.parse_args()
    draw, rows = np.random.default_rng(1), []
    for world, options in WORLDS.items():
        for gain in (0.0, 0.03, 0.1):
            ends = np.array(
                [
                    [math.log(end) for end in estimate("", blocks(draw, gain, **options)).ci or ()]
                    for _ in range(args.times)
                ]
            )
            rows.append(
                {
                    "world": world,
                    "gain": gain,
                    "holds_the_truth": float(np.mean((ends[:, 0] <= gain) & (gain <= ends[:, 1]))),
                    "below_the_margin": float(np.mean(ends[:, 1] < MARGIN)),
                    "above_nothing": float(np.mean(ends[:, 0] > 0)),
                    "median_width": float(np.median(ends[:, 1] - ends[:, 0])),
                }
            )
            print(json.dumps(rows[-1]), flush=True)
    result = {"times": args.times, "num_blocks": NUM_BLOCKS, "margin": MARGIN, "rows": rows}
    (RESULTS / "switch_interval.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
