"""Runs side by side, in lanes that are shares of the cores: real programs."""

from __future__ import annotations

import json
import os
import signal
import sys
import uuid

import pytest

from dynotune.measure.bench import protocol
from dynotune.measure.live import CompareRequest, lane_speed
from dynotune.schema.setting import Setting

from ..fakes import Watcher, of_run
from .conftest import CALL, DEADLINE_S, MARKED, QUICK, until
from .test_interrupts import carrying

PYTHON = sys.executable
# Says in its run folder on which cores it runs, and when.
PLACED = """
import json, os, pathlib
run = pathlib.Path(os.environ["DYNOTUNE_RUN"])
(run / "cores").write_text(json.dumps(sorted(os.sched_getaffinity(0))))
"""
needs_two_cores = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="a lane needs a core of its own"
)


@pytest.fixture
def compare(user, monkeypatch):
    """A comparison in two lanes, whichever is slower: that is a matter of what else this machine does."""
    monkeypatch.setattr(lane_speed, "slower", lambda alone, together: {})
    monkeypatch.setenv("XDG_STATE_HOME", user.env["XDG_STATE_HOME"])

    def compare(program, watcher, **fields):
        user.write("train.py", program)
        usual = {
            "command": [PYTHON, "train.py"],
            "cwd": user.cwd,
            "base": user.runs,
            "env": user.env,
            "seed": 0,
            "step_function": "dynotune.step",
            "warmup_steps": 3,
            "window_steps": 20,
            "lock": False,
            "lanes": 2,
            "candidate": [Setting("env.A", "1")],
            "max_pairs": 4,
        }
        return protocol.compare(of_run(CompareRequest, **(usual | fields)), watcher)

    return compare


@needs_two_cores
def test_both_runs_of_a_pair_have_the_cores_of_their_lane_and_no_other_lane_has_them(compare, user):
    comparison = compare(PLACED + CALL, Watcher(), margin=0.0)
    cores = {}
    for pair in comparison.pairs:
        for run in (pair.baseline_run, pair.candidate_run):
            cores.setdefault(pair.lane, set()).add((user.runs / run / "cores").read_text())
    assert {lane: len(found) for lane, found in cores.items()} == {1: 1, 2: 1}
    one, other = (set(json.loads(*found)) for found in cores.values())
    assert not one & other
    assert len(one) == len(other) == len(os.sched_getaffinity(0)) // 2
    # The pilots had all of them.
    assert json.loads((user.comparison_folder() / "pilot-baseline/cores").read_text()) == sorted(
        os.sched_getaffinity(0)
    )


@needs_two_cores
def test_a_program_that_fails_in_its_lane_is_compared_one_run_after_another(compare):
    """It wants all cores, as another wants a port that only one can have."""
    num = len(os.sched_getaffinity(0))
    greedy = f"import os\nif len(os.sched_getaffinity(0)) < {num}:\n    raise SystemExit(1)\n"
    watcher = Watcher()
    comparison = compare(greedy + CALL, watcher)
    assert {pair.lane for pair in comparison.pairs} == {0}
    assert any("is left out: the baseline failed with exit code 1" in text for text in watcher.said)
    assert "Runs go one after another." in watcher.said
    assert comparison.failed is None


@needs_two_cores
@pytest.mark.parametrize("objective", ["throughput", "memory"])
def test_an_arm_that_fails_in_its_lane_is_the_answer(compare, objective):
    failing = (
        "import os\nif os.environ.get('A') and 'pilot' not in os.environ['DYNOTUNE_RUN']:\n    raise "
        "SystemExit(7)\n"
    )
    comparison = compare(failing + CALL, Watcher(), objective=objective)
    assert comparison.failed is not None
    assert (comparison.failed.arm, comparison.failed.exit_code) == ("candidate", 7)


@pytest.mark.parametrize(
    ("words", "said"), [("999", "too few for 999 lanes"), ("none", "not a number of lanes")]
)
def test_lanes_that_there_are_not_are_refused_before_anything_runs(user, words, said):
    user.write("train.py", CALL)
    for command in ("compare", "tune"):
        settings = ["env.A=1"] if command == "compare" else []
        done = user.types(
            command,
            *settings,
            "--lanes",
            words,
            "--run-dir",
            str(user.runs),
            *MARKED,
            "--",
            PYTHON,
            "train.py",
        )
        assert done.returncode == 2
        assert said in done.stderr
    assert not list(user.runs.glob("*/*.json"))


@pytest.mark.long
@needs_two_cores
def test_an_interrupt_ends_the_runs_of_all_lanes(user):
    user.env["DYNOTUNE_TEST_MARK"] = mark = uuid.uuid4().hex
    user.write("train.py", "import os, pathlib\n" + CALL.replace(
        "for _", "run = pathlib.Path(os.environ['DYNOTUNE_RUN'])\nif not run.name.startswith('pilot'):\n"
        "    (run / 'hangs').touch()\n    time.sleep(1e6)\nfor _"
    ))  # fmt: skip
    quick = [*QUICK, *MARKED, "--lanes", "2", "--run-dir", str(user.runs)]
    with user.start("compare", "env.A=1", *quick, "--", PYTHON, "train.py") as process:
        until(lambda: list(user.runs.glob("*/*/hangs")), "a pair begun")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    assert "Traceback" not in err
    until(lambda: not carrying(mark), "all processes gone")
