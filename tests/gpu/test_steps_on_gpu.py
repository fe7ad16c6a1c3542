"""The steps that the agent counts where the work is in captured graphs, against the programs' own count."""

import ast
from pathlib import Path

import pytest

from ..agent.conftest import run_under_agent  # noqa: F401
from ..agent.planned_tasks import window_task

pytestmark = pytest.mark.gpu

PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.py"))
REPLAYS = Path(__file__).parent / "programs" / "replay_after_eager_calls.py"
VISIBLE = {"CUDA_VISIBLE_DEVICES": "0"}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_counts_the_steps_that_the_program_made(program, run_under_agent):  # noqa: F811
    ran = run_under_agent([program], env=VISIBLE)
    assert ran.returncode == 0, ran.stderr
    word, steps, samples = ran.stdout.split()[-3:]
    assert word == "TRUTH"
    assert (ran.stepping.num_steps, ran.stepping.num_samples) == (int(steps), ast.literal_eval(samples))
    assert [error for process in ran.processes for error in process.errors] == []


def test_the_window_of_replays_is_timed_with_the_device_synchronised(run_under_agent):  # noqa: F811
    ran = run_under_agent([REPLAYS], env=VISIBLE, tasks=[window_task(30, 20)])
    window = ran.stepping.window
    assert (window.first_step, window.num_steps) == (30, 20)
    assert window.num_device_allocations == 0
