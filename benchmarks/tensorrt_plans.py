"""The area that optimisation profiles waste on ten histograms of shapes, beside one profile from smallest to
largest.

    python benchmarks/tensorrt_plans.py [--out FILE]

The histograms are those of the tests. What is wasted is counted here anew: a call's elements that the
smallest profile holding it has too many. Sizes alone, on any machine.
"""

from __future__ import annotations

import argparse
import json
import sys
from math import prod
from pathlib import Path
from typing import Any

from dynotune.engines import plan_profiles
from dynotune.schema.engine_plan import EnginePlan, Profile, Shapes
from lab.provenance import RESULTS, describe
from lab.shape_histograms import TEN

MOST = 0.5
"""The share of the area that one profile wastes."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS / "tensorrt_plans.json")
    args = parser.parse_args()
    rows = [row(made.__name__, plan_profiles(made()), plan_profiles(made(), 1)) for made in TEN]
    result = {
        **describe(),
        "command": "python benchmarks/tensorrt_plans.py",
        "most": MOST,
        "histograms": rows,
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    for each in rows:
        print(
            f"{each['name']:34} {each['num_profiles']} profiles {each['wasted']:6.1%}, one "
            f"{each['wasted_by_one']:6.1%}"
        )
    missed = [each["name"] for each in rows if each["ratio"] > MOST or not each["all_held"]]
    sys.exit(f"More than half is wasted, or not all is held: {', '.join(missed)}" if missed else 0)


def row(name: str, plan: EnginePlan, one: EnginePlan) -> dict[str, Any]:
    used = sum(call.num * area(call.shapes) for call in plan.histogram.calls)
    ours, theirs = wasted(plan), wasted(one)
    return {
        "name": name,
        "num_calls": sum(call.num for call in plan.histogram.calls),
        "num_shapes": len(plan.histogram.calls),
        "num_profiles": len(plan.profiles),
        "all_held": all(
            any(holds(each, call.shapes) for each in plan.profiles) for call in plan.histogram.calls
        ),
        "wasted": ours / (used + ours),
        "wasted_by_one": theirs / (used + theirs),
        "ratio": ours / theirs,
        "largest": [each.max for each in plan.profiles],
    }


def area(shapes: Shapes) -> int:
    return sum(map(prod, shapes.values()))


def holds(profile: Profile, shapes: Shapes) -> bool:
    return all(
        low <= size <= high
        for name, sizes in shapes.items()
        for low, size, high in zip(profile.min[name], sizes, profile.max[name], strict=True)
    )


def wasted(plan: EnginePlan) -> int:
    """Elements too many, over all calls."""
    return sum(
        call.num
        * (min(area(each.max) for each in plan.profiles if holds(each, call.shapes)) - area(call.shapes))
        for call in plan.histogram.calls
    )


if __name__ == "__main__":
    main()
