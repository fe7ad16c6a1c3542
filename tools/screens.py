"""Show kept documents in real terminals, and tell whether each screen holds the verdict.

    python tools/screens.py FOLDER [DOCUMENT…] [--size 80x24]

`dynotune report` runs in tmux for each document: those named, or diagnoses and comparisons from
benchmarks/results. What each screen shows goes to a text file in FOLDER. Exits with 1 if a verdict cannot be
seen. Needs tmux.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
KINDS = {
    "dynotune.diagnosis": "dynotune.diagnosis/2",
    "dynotune.comparison": "dynotune.comparison/2",
}
"""The kinds of documents that are drawn from results, and their present version. Earlier versions of a
diagnosis have the same names for all that a screen shows."""
MOST_OF_A_KIND = 12
SERVER, ENDED = f"dynotune-screens-{os.getpid()}", "ended"
PATIENCE_S = 120


def kept(found: Any) -> Iterator[dict[str, Any]]:
    """Yield the documents within a result."""
    if isinstance(found, dict):
        kind = str(found.get("schema", "")).partition("/")[0]
        if kind in KINDS and found.get("verdict", "") is not None:
            yield found | {"schema": KINDS[kind]}
            return
    inside = found.values() if isinstance(found, dict) else found if isinstance(found, list) else ()
    for one in inside:
        yield from kept(one)


def drawn(folder: Path) -> list[Path]:
    """Write a few documents of each kind from kept results into the folder, and return their files."""
    files: dict[str, list[Path]] = {kind: [] for kind in KINDS}
    for result in sorted(RESULTS.glob("*.json")):
        for document in kept(json.loads(result.read_text(encoding="utf-8"))):
            kind = document["schema"].partition("/")[0]
            if len(files[kind]) < MOST_OF_A_KIND:
                file = folder / f"{kind.rpartition('.')[2]}-{len(files[kind]) + 1}.json"
                file.write_text(json.dumps(document), encoding="utf-8")
                files[kind].append(file)
    return [file for known in files.values() for file in known]


def screen(command: list[str], size: tuple[int, int]) -> list[str]:
    """Run a command in a terminal of this size, and return the lines that its screen shows at the end."""
    width, height = map(str, size)
    done = shlex.join(["tmux", "-L", SERVER, "wait-for", "-S", ENDED])
    line = f"{shlex.join(command)}; {done}; sleep {PATIENCE_S}"
    begin = ["new-session", "-d", "-s", "screen", "-x", width, "-y", height, line]
    tmux(*begin)
    try:
        tmux("wait-for", ENDED)
        return tmux("capture-pane", "-p", "-t", "screen").splitlines()
    finally:
        tmux("kill-session", "-t", "screen")


def tmux(*words: str) -> str:
    run = ["tmux", "-L", SERVER, "-f", "/dev/null", *words]
    return subprocess.run(run, check=True, capture_output=True, text=True, timeout=PATIENCE_S).stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("documents", type=Path, nargs="*")
    parser.add_argument("--size", default="80x24")
    asked = parser.parse_args()
    width, height = map(int, asked.size.split("x"))
    asked.folder.mkdir(parents=True, exist_ok=True)
    unseen = 0
    tmux("new-session", "-d", "-s", "keeps-the-server", "sleep", "86400")
    atexit.register(tmux, "kill-server")
    for file in asked.documents or drawn(asked.folder):
        lines = screen([sys.executable, "-m", "dynotune", "report", str(file)], (width, height))
        (asked.folder / f"{file.stem}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        is_seen = any(line.startswith("verdict") for line in lines)
        used = max((at for at, line in enumerate(lines, 1) if line.strip()), default=0)
        unseen += not is_seen
        print(f"{file.stem:24} {used:>2} of {height} lines, verdict {'seen' if is_seen else 'NOT SEEN'}")
    return 1 if unseen else 0


if __name__ == "__main__":
    sys.exit(main())
