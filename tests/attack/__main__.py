"""The standing attack, from the root of the repository:

    python -m tests.attack [--part NAME]… [--hours 2] [--seed N] [--number N] [--out FILE] [--page FILE]

Tries its parts one after the other, as many cases as make the whole of each, or as fit into the hours. Ends
with exit code 1 if anything did not hold. `--page` writes a table of what `--out` names, after the attack;
with `--number 0` nothing is tried.
"""

from __future__ import annotations

import argparse
import importlib
import json
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from lab import provenance

from .counts import Counts

ROOT = Path(__file__).parents[2]
SOAKED = ("hours", "tried", "held", "lost", "orphans", "left", "memory")
KNOWN = Path(__file__).with_name("known.md")
PARTS = ("readers", "files", "transparency", "processes", "people", "outsiders", "hostile", "runtime")
MOST_HOURS = 2.0
# The clock is looked at between slices of a part, a twentieth of it or so many cases.
SLICES, SMALLEST = 20, 40


def parts(names: list[str]) -> dict[str, ModuleType]:
    """The parts that there are, by name."""
    here = Path(__file__).parent
    return {
        name: importlib.import_module(f".{name}", __package__)
        for name in names
        if here.joinpath(f"{name}.py").exists()
    }


def attack(part: ModuleType, number: int, seed: int, until_s: float, say: Any) -> Counts:
    """Try `number` cases of a part, or as many as are begun before `until_s` of the monotonic clock."""
    done, counts = 0, None
    while done < number and (counts is None or time.monotonic() < until_s):
        slice_ = min(max(SMALLEST, number // SLICES), number - done)
        more = part.attack(slice_, seed, first=done)
        done += slice_
        if counts is None:
            counts = more
        else:
            counts.add(more)
        say(f"{done:,} of {number:,}, {len(counts.failures)} failures")
    return counts or Counts()


def page(result: dict[str, Any], soak: dict[str, Any] | None = None) -> str:
    """A table of what was tried and what held, in Markdown; of the soak, and what is known and left."""
    machine = ", ".join(
        f"{value}" for value in (*result["hardware"].values(), f"Python {result['python']}") if value
    )
    lines = [
        "# Robustness",
        "",
        (
            "`make attack` attacks dynotune with these cases, says which did not hold, and makes this page; "
            "`tests/attack`"
        ),
        "has the cases. A case is repeated by its part, seed and number, which a failure names.",
        "",
        f"On: {machine}.",
        "",
        "| part | cases | tried | failures | skipped | seed |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, part in result["parts"].items():
        cells = (
            name,
            len(part["tried"]),
            sum(part["tried"].values()),
            len(part["failures"]),
            len(part["skipped"]),
        )
        lines.append("| " + " | ".join(str(cell) if isinstance(cell, str) else f"{cell:,}" for cell in cells)
                     + f" | {part['seed']} |")  # fmt: skip
    for name, part in result["parts"].items():
        for title, texts in (
            ("did not hold", part["failures"]),
            ("not tried here", [f"{case}: {why}" for case, why in sorted(part["skipped"].items())]),
        ):
            lines += ["", f"## {name}: {title}", "", *(f"- {text}" for text in texts)] if texts else []
    if soak is not None:
        total = soak["total"]
        lines += [
            "",
            "## Soak",
            "",
            "Random programs run under random commands, and random faults strike; `make soak` goes on:",
            "",
            "| hours | cases | held | lost something | left a process | left a file or mount | memory grew |",
            "| --- | --- | --- | --- | --- | --- | --- |",
            "| " + " | ".join(f"{total[name]:,}" for name in SOAKED) + " |",
        ]
    return "\n".join([*lines, "", KNOWN.read_text().rstrip()]) + "\n"


def described() -> dict[str, Any]:
    """On what it is tried, without paths."""
    result = provenance.describe()
    result.pop("command")
    result["hardware"] = {
        key: value for key, value in result["hardware"].items() if "reason" not in str(value)
    }
    return result


def without_places(text: str) -> str:
    """`text` without the folders of this machine."""
    return provenance.without_places(text).replace(tempfile.gettempdir(), "$TMPDIR")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", action="append", choices=PARTS, help="only this one; repeat for more")
    parser.add_argument("--hours", type=float, default=MOST_HOURS, help="most time in all; 2 at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--number", type=int, help="cases of each part; the whole of it without")
    parser.add_argument("--out", type=Path, help="JSON to write; parts that it has from before are kept")
    parser.add_argument("--page", type=Path, help="Markdown to write")
    parser.add_argument("--soak", type=Path, help="what the soak wrote, to tell on the page")
    given = parser.parse_args()
    if not 0 < given.hours <= MOST_HOURS:
        parser.error(f"--hours is above 0, and {MOST_HOURS:g} at most")
    result: dict[str, Any] = {"schema": "dynotune.attack/1", **described(), "parts": {}}
    if given.out and given.out.exists():
        result["parts"] = json.loads(given.out.read_text())["parts"]
    # As tests/conftest.py: a shell's background jobs begin with them ignored, and what they start would
    # inherit it.
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    until_s, chosen, failed = time.monotonic() + given.hours * 3600, parts(given.part or list(PARTS)), False
    for place, (name, part) in enumerate(chosen.items()):
        number = part.WHOLE if given.number is None else given.number
        if not number:
            continue
        began_s = time.monotonic()
        share_s = (until_s - began_s) / (len(chosen) - place)
        counts = attack(part, number, given.seed, began_s + share_s, lambda text, name=name: print(
            f"{name}: {text}", file=sys.stderr, flush=True))  # fmt: skip
        failed = failed or bool(counts.failures)
        result["parts"][name] = {
            "seed": given.seed,
            "wall_s": round(time.monotonic() - began_s),
            **vars(counts),
        }
        for failure in counts.failures:
            print(f"{name}: {failure}", flush=True)
        if given.out:
            partial = given.out.with_name(f"{given.out.name}.partial")
            partial.write_text(without_places(json.dumps(result, indent=1)) + "\n")
            partial.replace(given.out)
    result["parts"] = {name: result["parts"][name] for name in PARTS if name in result["parts"]}
    if given.page:
        soak = json.loads(given.soak.read_text()) if given.soak else None
        given.page.write_text(without_places(page(result, soak)))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
