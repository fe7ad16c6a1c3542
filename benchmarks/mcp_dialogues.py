"""Whether a coding agent reaches the right setting through `dynotune mcp`: dialogues, without a model.

    python benchmarks/mcp_dialogues.py [--only NAME]… [--out FILE] [--again] [--quiet]

The official client of the protocol talks over standard input and output to the real server, of a folder with
the program alone. The client has one policy for all programs and reads only what the server returns: it asks
for a diagnosis, proves the first setting that the answer offers, then the next one, and stops at the first
that is `faster`; an answer that names the budget that it needs gets it; where all were tried and one was
`undecided`, it asks for that one again with more time. It has five calls.

The judge knows what was planted, and the client does not. A dialogue is right if the setting that the client
ends with is of a knob that takes the planted fault away and was proved `faster`; of a program without a
fault, if the client ends with no setting. Of each call FILE keeps the question, the answer, its size in
tokens (characters / 4) and its time, and `others` the cores that other programs used before it began, of all.
`--quiet` waits, ten minutes at most, until that is below a tenth: a busy machine cannot prove much. What is
in FILE already is not run again, unless `--again` says so; then the one that was there is kept under
`earlier`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from lab.mcp_dialogues import CASES, Case, held, summary
from lab.provenance import RESULTS, describe
from lab.result_file import opened, read

QUIET, LONGEST_WAIT_S = 0.1, 600


def others(until: float) -> float:
    """Return the share of the cores in use, waiting for as little as `until`, but not for ever."""
    began_s = time.monotonic()
    while (used := psutil.cpu_percent(5.0) / 100) > until and time.monotonic() - began_s < LONGEST_WAIT_S:
        pass
    return round(used, 2)


def chosen(only: Sequence[str]) -> Iterator[Case]:
    return (case for case in CASES if not only or case.name in only)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", default=[], choices=[case.name for case in CASES])
    parser.add_argument("--out", type=Path, default=RESULTS / "mcp_dialogues_cpu.json")
    parser.add_argument("--again", action="store_true", help="hold those anew that are in the file already")
    parser.add_argument("--quiet", action="store_true", help="begin when others leave the machine alone")
    args = parser.parse_args()
    for case in chosen(args.only):
        if not args.again and case.name in read(args.out).get("dialogues", {}):
            continue
        found = {"others": others(QUIET if args.quiet else 1.0)} | held(case)
        with opened(args.out) as result:
            result.update(describe())
            dialogues = result.setdefault("dialogues", {})
            if case.name in dialogues:
                result.setdefault("earlier", []).append({"name": case.name, **dialogues[case.name]})
            dialogues[case.name] = found
            result["summary"] = summary(result["dialogues"])
        told = " ".join(found["settings"]) or "nothing"
        print(f"{case.name:32} {'right' if found['right'] else 'WRONG'}: {told}, {found['num_calls']} calls, "
              f"{found['took_s']:.0f} s", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
