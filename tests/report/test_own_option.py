"""The comparison that proves an option of the program."""

from __future__ import annotations

import shlex

import pytest

from dynotune.report.own_option import comparison
from dynotune.schema.diagnosis import OwnOption

WORKERS = OwnOption(name="--num-workers", value="8", words=["--num-workers", "8"], now="2")


@pytest.mark.parametrize(
    ("option", "command", "expected"),
    [
        (
            WORKERS,
            "python t.py --num-workers 2 --lr 1",
            (
                "arg.num_workers=8 --baseline arg.num_workers=2 -- python t.py --lr 1 --num-workers "
                "{num_workers}"
            ),
        ),
        (
            WORKERS,
            "python t.py --num-workers=2",
            "arg.num_workers=8 --baseline arg.num_workers=2 -- python t.py --num-workers {num_workers}",
        ),
        (
            OwnOption(name="--amp", value="True", words=["--amp"], now="False"),
            "python t.py",
            "arg.amp=--amp --baseline arg.amp= -- python t.py {amp}",
        ),
        (
            OwnOption(name="trainer.workers", value="8", words=["trainer.workers=8"], now="2"),
            "python t.py",
            "arg.workers=8 --baseline arg.workers=2 -- python t.py trainer.workers={workers}",
        ),
    ],
)
def test_comparison_fills_the_option_when_it_has_a_value(option, command, expected):
    assert (
        shlex.split(" ".join(comparison(option, command.split()))) == f"dynotune compare {expected}".split()
    )


@pytest.mark.parametrize(
    "option",
    [
        OwnOption(name="--eval-steps", now="10"),
        OwnOption(name="--no-amp", now="False", leave_out=True),
        OwnOption(name="--dtype", value="bf16", words=["--dtype", "bf16"]),  # what it is now cannot be typed
    ],
)
def test_comparison_is_not_offered_when_there_is_no_value_to_give(option):
    assert comparison(option, ["python", "t.py"]) == []
