"""A soak, from the root of the repository, in pieces:

    python -m tests.attack.soak --out benchmarks/results/soak_cpu.json [--minutes 60] [--workers 2] [--seed N]

Goes on where the last piece of the file ended: random programs under random commands meet random faults,
for at most an hour. Each worker is one user, whose state folder stays through the piece, and beside them one
`dynotune watch` follows a program for the whole piece. After each case nothing may be left or lost, as in the
attack on processes; at the end of a piece, dynotune's memory must have been flat. Ends with exit code 1 if
anything did not hold in any piece.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from .__main__ import described, without_places
from .counts import Counts
from .odd_programs import PROGRAMS
from .processes import (
    COMPARE,
    DIAGNOSE,
    FAULTS,
    PYTHON,
    RUN,
    SCENES,
    STARTUP,
    TUNE,
    Fault,
    Lost,
    Scene,
    Skipped,
    World,
    strike,
)

MOST_MINUTES = 60.0
GROWTH = 1.2
"""Memory is flat if the last third of a piece has at most this times what the first third had."""
FEWEST = 9
"""Cases of one command in a piece, below which its memory says nothing."""
FAULTY = 0.8
"""Share of the cases in which a fault strikes; the memory of the others is compared."""
UP_FIRST = (
    "import os, pathlib, time\n"
    'pathlib.Path(os.environ.get("DYNOTUNE_RUN") or ".", f"up-{os.getpid()}").touch()\n'
)
WATCH = Scene("run watched", ("watch",), RUN.program, RUN.arguments)
COMMANDS = (RUN, WATCH, COMPARE, DIAGNOSE, TUNE, STARTUP)
ODD = sorted(
    name
    for name, odd in PROGRAMS.items()
    if odd.program and odd.words == ("@python", "main.py") and odd.shell == '"$@"' and not odd.stdin
    and not odd.terminal and not odd.files and not odd.needs and "much output" not in name
)  # fmt: skip
NONE = Fault("no fault")


class User(World):
    """A case's world whose user has been here before; it notes the most memory that dynotune took."""

    def __init__(self, folder: Path, scene: Scene, state: Path) -> None:
        super().__init__(folder, scene)
        self.state, self.peak_kib = state, 0
        self.env["XDG_STATE_HOME"] = str(state)

    def ended(self, process: subprocess.Popen[bytes]) -> int:
        over = threading.Event()

        def look() -> None:
            while not over.wait(0.05):
                self.peak_kib = max(self.peak_kib, _kib(process.pid, "VmHWM"))

        looking = threading.Thread(target=look)
        looking.start()
        try:
            return super().ended(process)
        finally:
            over.set()
            looking.join()


def drawn(at: int, seed: int) -> tuple[Scene, Fault, Random]:
    """The case of this number: a scene of the attack on processes, or a command on an odd program."""
    random = Random(f"soak {seed} {at}")
    scene = random.choice(SCENES)
    if random.random() < 0.5:
        command, name = random.choice(COMMANDS), random.choice(ODD)
        longer = f"\ntime.sleep({random.random() * 2:.2f})\n" if random.random() < 0.5 else "\n"
        scene = dataclasses.replace(
            command,
            name=f"{command.name} of an odd program ({name})",
            program=UP_FIRST + longer + PROGRAMS[name].program,
            arguments=(),
            resumed_with=(),
        )
    faults = [fault for fault in FAULTS if fault.fits(scene)]
    return scene, random.choice(faults) if random.random() < FAULTY else NONE, random


def case(at: int, seed: int, state: Path) -> dict[str, Any]:
    """What came of the case: `outcome` (held, skipped, lost), `why`, and `peak_kib` of dynotune."""
    scene, fault, random = drawn(at, seed)
    found: dict[str, Any] = {"at": at, "name": f"{scene.name}: {fault.name}", "command": scene.words[0]}
    with tempfile.TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True) as folder:
        world = User(Path(folder).resolve(), scene, state)
        world.folder.chmod(0o711)
        try:
            strike(world, fault, random)
            found |= {"outcome": "held", "why": "", "peak_kib": world.peak_kib if fault is NONE else 0}
        except Skipped as skipped:
            found |= {"outcome": "skipped", "why": str(skipped)}
        except Lost as lost:
            found |= {"outcome": "lost", "why": f"{lost}; it said: {world.said()[-600:]!r}"}
        finally:
            world.end()
    return found


class Companion:
    """A `dynotune watch` of an endless program, whose memory is looked at."""

    def __init__(self, folder: Path) -> None:
        self._world = World(folder, dataclasses.replace(WATCH, arguments=("1000000000",)))
        program = UP_FIRST + "import dynotune\nwhile True:\n    time.sleep(0.01)\n    dynotune.step()\n"
        (folder / "project" / "train.py").write_text(program)
        words = ["watch", "--serve", "127.0.0.1:0", *self._world._options(), "--", PYTHON, "train.py"]
        self._process = self._world._start([PYTHON, "-m", "dynotune", *words], stdin=subprocess.DEVNULL)
        self.kib: list[int] = []

    def look(self) -> None:
        if (now := _kib(self._process.pid, "VmRSS")) > 0:
            self.kib.append(now)

    def end(self) -> str:
        """End it as a user would, and say what did not hold, or nothing."""
        goes_on = self._process.poll() is None
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            return "the watcher of the whole piece did not end"
        finally:
            self._world.end()
        return "" if goes_on else f"the watcher of the whole piece ended: {self._world.said()[-600:]!r}"


def grown(name: str, kib: Sequence[int]) -> str:
    """Say that memory grew from the first third to the last, or nothing."""
    third = len(kib) // 3
    if len(kib) < FEWEST:
        return ""
    first, last = median(kib[:third]), median(kib[-third:])
    if last <= GROWTH * first:
        return ""
    return f"memory of {name} grew from {first / 1024:.0f} to {last / 1024:.0f} MiB"


def piece(begin: int, seed: int, minutes: float, workers: int) -> dict[str, Any]:
    """Run cases from number `begin` on until the time is over."""
    began_s, counts, cases = time.monotonic(), Counts(), list[dict[str, Any]]()
    until_s = began_s + 60 * minutes
    with tempfile.TemporaryDirectory(prefix="soak-piece-", ignore_cleanup_errors=True) as folder:
        places = [Path(folder).resolve() / name for name in ("watched", *map(str, range(workers)))]
        for place in places:
            place.mkdir()
        companion = Companion(places[0])
        next_at = iter(range(begin, sys.maxsize))
        lock, stopped = threading.Lock(), threading.Event()

        def work(state: Path) -> None:
            while time.monotonic() < until_s and not stopped.is_set():
                with lock:
                    at = next(next_at)
                found = case(at, seed, state)
                with lock:
                    cases.append(found)
                    companion.look()
                    if len(cases) % 20 == 0 or found["outcome"] == "lost":
                        print(f"{len(cases)} cases, {found['name']}: {found['outcome']}", file=sys.stderr)

        try:
            with ThreadPoolExecutor(workers) as pool:
                try:
                    for future in [pool.submit(work, state) for state in places[1:]]:
                        future.result()
                finally:
                    stopped.set()
        finally:
            ending = companion.end()
    for found in cases:
        if found["outcome"] == "skipped":
            counts.skipped[found["name"]] = found["why"]
            continue
        counts.tried[found["command"]] += 1
        if found["outcome"] == "held":
            counts.held[found["command"]] += 1
        else:
            counts.failures.append(f"{found['name']}, --seed {seed}, case {found['at']}: {found['why']}")
    peaks = {
        command: [
            found["peak_kib"] for found in cases if found["command"] == command and found.get("peak_kib")
        ]
        for command in sorted(counts.tried)
    }
    memory = {"watch for the whole piece": companion.kib, **peaks}
    counts.failures += filter(None, [ending, *(grown(name, kib) for name, kib in memory.items())])
    return {
        "seed": seed,
        "first": begin,
        "next": begin + len(cases),
        "wall_s": round(time.monotonic() - began_s),
        **vars(counts),
        "memory_mib": {
            name: [round(each / 1024, 1) for each in (kib[0], median(kib), kib[-1])]
            for name, kib in memory.items()
            if kib
        },
    }


def total(pieces: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The counts of all pieces: hours, cases tried and held, and failures by their kind."""
    failures = [text for part in pieces for text in part["failures"]]
    kinds = {"orphans": "processes are left", "left": "left: mounts", "memory": "memory of"}
    counts = {kind: sum(words in text for text in failures) for kind, words in kinds.items()}
    return {
        "hours": round(sum(part["wall_s"] for part in pieces) / 3600, 2),
        "tried": sum(sum(part["tried"].values()) for part in pieces),
        "held": sum(sum(part["held"].values()) for part in pieces),
        "lost": len(failures) - sum(counts.values()),
        **counts,
    }


def _kib(pid: int, field: str) -> int:
    with contextlib.suppress(OSError):
        found = re.search(rf"^{field}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
        return int(found[1]) if found else 0
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="JSON to go on with and to write")
    parser.add_argument(
        "--minutes", type=float, default=MOST_MINUTES, help="length of this piece; 60 at most"
    )
    parser.add_argument("--workers", type=int, default=2, help="users at once")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if not 0 < given.minutes <= MOST_MINUTES:
        parser.error(f"--minutes is above 0, and {MOST_MINUTES:g} at most")
    # As in __main__: a shell's background jobs begin with them ignored.
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    pieces = json.loads(given.out.read_text())["pieces"] if given.out.exists() else []
    begin = max((part["next"] for part in pieces if part["seed"] == given.seed), default=0)
    pieces.append(piece(begin, given.seed, given.minutes, given.workers))
    result = {"schema": "dynotune.soak/1", **described(), "total": total(pieces), "pieces": pieces}
    partial = given.out.with_name(f"{given.out.name}.partial")
    partial.write_text(without_places(json.dumps(result, indent=1)) + "\n")
    partial.replace(given.out)
    print(json.dumps(result["total"]))
    for failure in pieces[-1]["failures"]:
        print(failure)
    return int(any(part["failures"] for part in pieces))


if __name__ == "__main__":
    sys.exit(main())
