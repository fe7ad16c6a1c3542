"""Small valid documents of answers, for the attack on what `dynotune report` reads."""

from __future__ import annotations

import msgspec

from dynotune.schema.account import AccountDetail, AccountRow, RunAccount, SavedTime
from dynotune.schema.bisection import Bisection, BisectionPoint, BisectionStep
from dynotune.schema.largest import Bound, LargestValue, Limit, Measured, ValueRun
from dynotune.schema.precision import Band, Change, Precision, PrecisionArm
from dynotune.schema.setting import Setting

from ..fakes import of_run
from ..report import studies


def account() -> RunAccount:
    rows = [
        AccountRow("start", "imports", 12.0, [AccountDetail("torch", 9.0, "a text")]),
        AccountRow("steps", "backward", 40.0, [AccountDetail("/home/me/train.py(31): train", 40.0)]),
        AccountRow("unexplained", "unexplained", 1.0),
    ]
    saved = [SavedTime("optimizer.fused=true", 1.25, (1.2, 1.3), 1800.0)]
    numbers = {"num_steps": 2000, "num_epochs": 4, "per_thousand_steps_s": 7200.0, "per_epoch_s": 20.0}
    stack = {"unexplained_stack": ["train.py(3): wait"], "notes": ["a note"], "step": "draw, step"}
    return RunAccount(
        id="r",
        command=["python"],
        wall_s=53.0,
        exit_code=0,
        pid=7,
        rows=rows,
        saved=saved,
        **numbers,
        **stack,
    )


def bisection() -> Bisection:
    points = [BisectionPoint(name=name, title=f"change {name}") for name in ("a1", "b2", "c3", "d4")]
    slower = BisectionStep(
        baseline=0, candidate=3, side="bad", speedup=0.8, ci=(0.7, 0.9), num_pairs=4, comparison="/runs/1"
    )
    left_out = BisectionStep(baseline=0, candidate=1, side="skipped", reason="it does not start")
    return of_run(
        Bisection,
        id="b",
        command=["python"],
        good="a1",
        bad="d4",
        kind="revisions",
        points=points,
        not_switched=["a driver"],
        max_pairs=12,
        margin=0.01,
        error=0.05,
        shown=slower,
        against=0.9,
        steps=[left_out, slower],
        confirmed=slower,
        ending="found",
        last_good=2,
        first_bad=3,
        reason="a reason",
        changed=["train.py | 2 +-"],
        next_command=["dynotune", "bisect"],
        warnings=["a warning"],
    )


def largest() -> LargestValue:
    shown = [Measured(quantity="frame-rate", value=29.0, low=28.0, high=30.0, worst="door")]
    runs = [
        ValueRun(value=8, run="1", measured=shown, notes=["a stream ended"], wall_s=9.0),
        ValueRun(value=16, run="2", failed="it ended with exit code 1"),
    ]
    return of_run(
        LargestValue,
        id="l",
        name="streams",
        command=["python", "{streams}"],
        limits=[Limit("frame-rate", 25.0)],
        fps=30.0,
        runs=runs,
        predicted=[Bound(name="cores", why="8 cores", share=0.5, largest=12)],
        end="proved",
        largest=8,
        refuted=16,
        undecided=[12],
        binds=Bound(name="memory", why="80 GB"),
        warnings=["a warning"],
    )


def precision() -> Precision:
    study = studies.rich()
    arm = PrecisionArm(
        name="bfloat16",
        settings=[Setting("precision.autocast", "bfloat16")],
        speed=msgspec.structs.replace(study.confirmed, id="c"),
        peak_bytes=1 << 30,
        metric=Change(-0.1, (-0.2, 0.1), 100),
        band=Band(3, (0.1, 0.2), 0.15),
        reasons=["a reason"],
    )
    return Precision(command=["python"], own="float32", peak_bytes=2 << 30, metric="m:f", arms=[arm])
