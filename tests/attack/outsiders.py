"""The standing attack by what comes from elsewhere and is alive: run folders to join, jobs of agents,
databases.

Each case starts dynotune as a user would, beside something that must not be touched, and says what it did to
it.
"""

from __future__ import annotations

import os
import random as randoms
import re
import signal
import sqlite3
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dynotune.agent.core.writer import Writer

from .counts import Counts
from .people import RUN, Person, Skipped

WHOLE = 80
"""Each case twenty times."""
LONGEST_S = 60.0
VICTIM = """
import signal, sys
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
    signal.signal(number, lambda number, frame: print("got", number, flush=True))
print("up", flush=True)
sys.stdin.read(1)
"""
STEPS = "import time, dynotune\n%s\nfor _ in range(60):\n    time.sleep(0.003)\n    dynotune.step()\n"
MEASURED = (
    ("diagnose", "--warmup", "3", "--steps", "20", "--step-function", "dynotune.step", "--no-lock"),
    (
        "compare",
        "env.A=1",
        "--pairs",
        "2",
        "--warmup",
        "3",
        "--steps",
        "20",
        "--step-function",
        "dynotune.step",
        "--no-lock",
    ),
)
OWN = (
    "CREATE TABLE dynotune_schema (version INTEGER NOT NULL)",
    "INSERT INTO dynotune_schema VALUES (2)",
    """CREATE TABLE study (name TEXT, asked TEXT, finished INTEGER, began DOUBLE PRECISION, leader TEXT,
        document TEXT GENERATED ALWAYS AS (printf('%.*c', 60000000, 'x')) VIRTUAL)""",
    "CREATE TABLE worker (id TEXT, study TEXT, seen DOUBLE PRECISION)",
    "CREATE TABLE block (study TEXT, id TEXT, number INTEGER, document TEXT, worker TEXT, result TEXT)",
)
"""Tables of dynotune's names, of which one computes 60 MB a row."""
ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS name FROM n"


def attack(number: int, seed: int, *, first: int = 0) -> Counts:
    """Run `number` cases; the case of number `i` depends on the seed and `i` alone."""
    return tried(CASES, number, seed, first)


def tried(cases: Sequence[Callable[..., None]], number: int, seed: int, first: int) -> Counts:
    """Run `number` of the cases in turn, each in a folder of its own."""
    counts = Counts()
    for at in range(first, first + number):
        case = cases[at % len(cases)]
        name = case.__name__.strip("_").replace("_", " ")
        counts.tried[name] += 1
        with tempfile.TemporaryDirectory(prefix="attack-", ignore_cleanup_errors=True) as folder:
            try:
                case(randoms.Random(f"{seed} {at}"), Path(folder).resolve())
            except Skipped as skipped:
                counts.skipped[name] = str(skipped)
                counts.tried[name] -= 1
            except (AssertionError, OSError, ValueError, subprocess.SubprocessError) as error:
                counts.failures.append(f"{name}, --seed {seed}, case {at}: {type(error).__name__}: {error}")
            else:
                counts.held[name] += 1
    return counts


@contextmanager
def bystander(env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """A process that is none of dynotune's. Raises AssertionError: it got a signal."""
    words = [sys.executable, "-c", VICTIM]
    with subprocess.Popen(
        words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        try:
            yield process
            said, _ = process.communicate("x", timeout=LONGEST_S)
        finally:
            process.kill()
    assert (said, process.returncode) == ("", 0), f"it was signalled: {said}"


def stalled_record(folder: Path, pid: int, stacks_by: object) -> None:
    """A record of a run that stalls, of a process and with a signal of the attacker's choice."""
    writer = Writer(str(folder), {"watched": True})
    now_s = time.clock_gettime(time.CLOCK_MONOTONIC)
    writer.event(event="process", argv=["python", "train.py"], rank=0)
    writer.event(event="cycle", begin_s=now_s - 30, stacks_by=stacks_by)
    for at in range(40):
        writer.step(now_s - 30 + at / 100, 0.0, 1, 0)
    (path,) = folder.glob("process-*.rec")
    content = bytearray(path.read_bytes())
    content[12:16] = struct.pack("<I", pid)
    path.unlink()
    (folder / f"process-{pid}-0.rec").write_bytes(content)


def _a_joined_run_names_a_process_and_a_signal(random: randoms.Random, folder: Path) -> None:
    """Its stacks lie in a file, a pipe, or a link to a device; nobody is signalled, and Ctrl-C ends the
    watching."""
    me, run = Person(folder / "me"), folder / "run"
    run.mkdir()
    (run / "plan.json").write_text("{}")
    marked = {**os.environ, "DYNOTUNE_RUN": str(run)} if random.random() < 0.5 else None
    with bystander(marked) as victim:
        number = random.choice((signal.SIGTERM, signal.SIGRTMIN + 5, signal.SIGUSR1, "x", 1e300, [15]))
        stalled_record(run, victim.pid, number)
        stacks = run / f"stacks-{victim.pid}.txt"
        random.choice((stacks.touch, lambda: os.mkfifo(stacks), lambda: stacks.symlink_to("/dev/zero")))()
        if random.random() < 0.5:
            os.mkfifo(run / "process-99-0.rec")
        watching = me.start("watch", str(run), command=(None,))  # type: ignore[arg-type]
        assert watching.stdout is not None
        said, hangs = "", threading.Timer(LONGEST_S, watching.kill)
        hangs.start()
        while "stalled" not in said and "No step" not in said and (line := watching.stdout.readline()):
            said += line
        watching.send_signal(signal.SIGINT)
        said += watching.communicate(timeout=LONGEST_S)[0]
        hangs.cancel()
        assert watching.returncode == 0 and "made a mistake" not in said, (watching.returncode, said[-800:])


def _a_program_puts_files_that_are_none_among_its_records(random: randoms.Random, folder: Path) -> None:
    me = Person(folder / "me")
    what = random.choice(
        ("os.mkfifo(at)", "os.symlink('/dev/zero', at)", "os.mkdir(at)", "os.symlink(at, at)")
    )
    name = random.choice(("process-99-0.rec", "process-99-1.more", "stacks-1.txt", "samples.jsonl"))
    (me.project / "train.py").write_text(
        "import os\n"
        + STEPS % f"at = os.environ['DYNOTUNE_RUN'] + '/{name}'\nif not os.path.lexists(at): {what}"
    )
    code, said = me.types(*random.choice((RUN, ("watch",), MEASURED[0])))
    assert code == 0, (what, name, said[-800:])


def _a_program_begins_a_session_or_a_group(random: randoms.Random, folder: Path) -> None:
    me = Person(folder / "me")
    call = random.choice(("os.setsid()", "os.setpgrp()", "os.setpgid(0, 0); os.killpg(0, 0)"))
    (me.project / "train.py").write_text("import os\n" + STEPS % call)
    code, said = me.types(*random.choice(MEASURED))
    assert code == 0, (call, said[-800:])


def _a_database_of_another_program(random: randoms.Random, folder: Path) -> None:
    me, path = Person(folder / "me"), folder / "foreign.db"
    statements = random.choice((
        ["CREATE TABLE bookmarks (url TEXT)"],
        [f"CREATE VIEW {name} AS {ENDLESS}" for name in ("study", "worker", "block", "dynotune_schema")],
        ["CREATE TABLE dynotune_schema (version)", "INSERT INTO dynotune_schema VALUES ('x')"],
        [*OWN, *(f"INSERT INTO study VALUES ('{name}', '', 0, 0, '')" for name in range(300))],
        [],
    ))  # fmt: skip
    with sqlite3.connect(path) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()
    before = path.read_bytes() if path.exists() else None
    code, said = me.says("studies", "--storage", f"sqlite:///{path}")
    assert code in (2, 3) and not re.search("Traceback", said), (code, said[-800:])
    assert (path.read_bytes() if path.exists() else None) == before


CASES = (
    _a_joined_run_names_a_process_and_a_signal,
    _a_program_puts_files_that_are_none_among_its_records,
    _a_program_begins_a_session_or_a_group,
    _a_database_of_another_program,
)
