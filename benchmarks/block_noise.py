"""Whether blocks of real programs differ by more than their repeated stretches explain (decision 61).

    python benchmarks/block_noise.py RUNS_FOLDER… [--out FILE]

Reads the records of runs that are kept, as comparisons and studies leave them, and writes for each arm in
turns the log ratios of its blocks and of their repeated stretches. No path of a run is kept.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
from collections.abc import Iterator
from pathlib import Path

from dynotune.launch.records.reader import Reader
from dynotune.measure.live.blocks import counts_samples, within
from dynotune.schema.errors import RecordError
from dynotune.schema.events import Block
from lab.provenance import RESULTS, describe

NUM_BINS = 10
COMMAND = "python benchmarks/block_noise.py RUNS_FOLDER…"


def series(blocks: list[Block]) -> Iterator[list[Block]]:
    """Yield the blocks of each arm of each task: a number that does not rise begins another task."""
    tasks: list[dict[int, list[Block]]] = [{}]
    for block in blocks:
        known = tasks[-1].get(block.arm)
        if known and block.number <= known[-1].number:
            tasks.append({})
        tasks[-1].setdefault(block.arm, []).append(block)
    for arms in tasks:
        for made in arms.values():
            yield [block for block in made if len(block.baseline) == len(block.candidate) == 2]


def row(blocks: list[Block]) -> dict[str, object]:
    """Return log ratios of blocks and repeats, and the quantile of their F test."""
    from scipy.special import fdtr

    by_sample = counts_samples(blocks)
    logs = [
        math.log(base_s / arm_s) for base_s, arm_s in (block.unit_s(by_sample=by_sample) for block in blocks)
    ]
    repeats = list(itertools.chain.from_iterable(block.repeats(by_sample=by_sample) for block in blocks))
    noise = within(repeats)
    ratio = statistics.variance(logs) / noise.variance if noise.variance else math.inf
    quantile = float(fdtr(len(logs) - 1, noise.df, ratio)) if math.isfinite(ratio) else 1.0
    return {"logs": logs, "repeats": repeats, "quantile": quantile}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=RESULTS / "block_noise_cpu.json")
    asked = parser.parse_args()
    rows, num_unread = [], 0
    for path in sorted({path for folder in asked.folders for path in folder.rglob("process-*.rec")}):
        try:
            record = Reader(path).update()
        except (RecordError, OSError):
            num_unread += 1
            continue
        rows += [row(blocks) for blocks in series(record.all(Block)) if len(blocks) > 1]
    bins = [sum(int(each["quantile"] * NUM_BINS) == at for each in rows) for at in range(NUM_BINS)]  # type: ignore[call-overload,operator]
    bins[-1] += sum(each["quantile"] == 1.0 for each in rows)
    print(f"{len(rows)} comparisons, by the tenth of their F quantile: {bins}; {num_unread} records unread")
    known = {**describe(), "command": COMMAND}
    document = {**known, "num": len(rows), "tenths": bins, "num_unread": num_unread, "rows": rows}
    asked.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
