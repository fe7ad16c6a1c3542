"""How long a step takes after each thing that dynotune does to a running program: is the process still the
user's?

    python benchmarks/after_each_task.py [--device cuda] [--windows 4] [--window-s 1.0] [--out FILE]
        [-- COMMAND …]

One live run of a command (by default a small GPT) is timed in windows, then carries out one task after
another, with windows after each: a recording, a recording with stacks, a record of the allocator, and blocks
of some arms. If the windows of a row differ from the first ones by more than these differ among themselves,
the task leaves something behind. Two rows before any task show how much the machine itself changes. The
second figure of each row is the time that the main thread had a core, which other programs hardly change.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from dynotune import knobs
from dynotune.launch.records import Record
from dynotune.measure.live import Live, TaskRunner, TurnsPlan, checked_facts, machine_lock, placement
from dynotune.report import Progress
from dynotune.schema.arm import Arm
from dynotune.schema.errors import CannotRunHere
from dynotune.schema.events import TraceRecorded, Window
from dynotune.schema.run import RunSpec
from dynotune.schema.task import RecordMemory, RecordTrace, Task, TimeWindow
from lab import result_file
from lab.provenance import RESULTS
from lab.tuning.programs import TRAIN

RECORDED_STEPS, NUM_BLOCKS = 5, 2
ARMS = {
    "cuda": [
        "optimizer.fused=true",
        "precision.autocast=bf16",
        "compile.mode=default",
        "compile.mode=reduce-overhead",
    ],
    "cpu": ["compile.mode=default", "optimizer.fused=true"],
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--window-s", type=float, default=1.0)
    parser.add_argument("--label", default="gpt-small")
    parser.add_argument("--out", type=Path)
    parser.add_argument("command", nargs="*")
    given = parser.parse_args()
    out = given.out or RESULTS / f"after_each_task_{given.device}.json"
    command = given.command or [
        sys.executable,
        str(TRAIN),
        "gpt",
        "--size",
        "small",
        "--device",
        given.device,
    ]
    with tempfile.TemporaryDirectory() as base, Progress(Console(stderr=True)) as progress:
        hidden = {} if given.device == "cuda" else {"CUDA_VISIBLE_DEVICES": ""}
        run = RunSpec(command=command, cwd=Path.cwd(), env=os.environ | hidden, base=Path(base))
        rows = timed(run, given, progress)
    with result_file.opened(out) as result:
        result.setdefault("commands", {})[given.label] = rows
    first = statistics.median(rows[0]["step_ms"])
    for row in rows:
        ratio, host = statistics.median(row["step_ms"]) / first, row["host_ms"] / rows[0]["host_ms"]
        figures = f"{ratio:6.3f} {host:6.3f}  {row['step_ms']}"
        print(f"{given.label:12} {row['after']:42} {figures}  {row.get('note', '')}", flush=True)


def timed(run: RunSpec, given: argparse.Namespace, progress: Progress) -> list[dict[str, Any]]:
    facts = checked_facts(run, None, progress)
    rows: list[dict[str, Any]] = []
    label = "the run that is timed after each task"
    with (
        machine_lock(run, progress),
        TaskRunner(run, progress, facts=facts, label=label, observe=True) as runner,
    ):

        def row(after: str, note: str = "") -> None:
            window_ms(runner, 0.1)  # steps that warm up again are left out
            before_ms, before = host_ms(runner)
            step_ms = [window_ms(runner, given.window_s) for _ in range(given.windows)]
            after_ms, num_steps = host_ms(runner)
            rows.append(
                {"after": after, "step_ms": step_ms, "host_ms": (after_ms - before_ms) / (num_steps - before)}
            )
            if note:
                rows[-1]["note"] = note

        row("nothing")
        row("nothing, again")
        for after, stacks in (("a recording", False), ("a recording with stacks", True)):
            row(after, do(runner, "recorded", lambda at_step, stacks=stacks: RecordTrace(
                at_step=at_step, num_steps=RECORDED_STEPS, stacks=stacks, shapes=stacks
            )))  # fmt: skip
        row(
            "a record of the allocator",
            do(runner, "recorded", lambda at_step: RecordMemory(at_step=at_step, num_steps=2)),
        )
        for words in ARMS[given.device]:
            arm = Arm((knobs.parse(words),))
            live = Live(run, run.base, facts, progress, runner=runner)
            turns = live.turns([arm], 90.0, TurnsPlan(num_blocks=NUM_BLOCKS, fewest_blocks=1, stretch_s=0.3))
            for _ in turns:
                pass
            found = turns.found()
            row(f"blocks of {words}", found.given_up.get(arm.key, ""))
        row("a recording with stacks, again", do(runner, "recorded", lambda at_step: RecordTrace(
            at_step=at_step, num_steps=RECORDED_STEPS, stacks=True
        )))  # fmt: skip
        runner.end()
    return rows


def do(runner: TaskRunner, what: str, task: Callable[[int], Task]) -> str:
    """Have the run carry out a task; return what the record says about it."""

    def placed(records: Sequence[Record]) -> Task:
        return task(placement.earliest(records))

    def within(record: Record) -> Task:
        raise CannotRunHere("the program ended")

    answer = runner.do(placed, within, what=what)
    stays = [trace.cupti_stays for trace in answer.all(TraceRecorded) if trace.cupti_stays]
    return answer.reason or "; ".join(stays)


def host_ms(runner: TaskRunner) -> tuple[float, int]:
    """Return the milliseconds that the program's main thread has had a core, and the number of its steps so
    far.

    Other programs on the same cores lengthen a step, and hardly the time that the thread itself needs.
    """
    assert runner.live is not None
    record = runner.live.records()[0]
    on_core_ns = Path(f"/proc/{record.pid}/task/{record.pid}/schedstat").read_text().split()[0]
    return int(on_core_ns) / 1e6, len(runner.live.records()[0].steps)


def window_ms(runner: TaskRunner, window_s: float) -> float:
    """Return the milliseconds of a step, over a window that is synchronised at both ends."""
    step_s = runner.step_s or 0.01
    num_steps = max(4, round(window_s / step_s))

    def placed(records: Sequence[Record]) -> TimeWindow:
        return TimeWindow(at_step=placement.earliest(records), num_steps=num_steps)

    def within(record: Record) -> TimeWindow:
        raise CannotRunHere("the program ended")

    (event,) = runner.do(placed, within, what="timed").all(Window)
    return round(1e3 * (event.end_s - event.begin_s) / event.num_steps, 3)


if __name__ == "__main__":
    main()
