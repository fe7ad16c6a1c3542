"""Facts of the live process that are read from the program's source."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynotune.launch.records.process_state import state_of_process

from ..planned_tasks import window_task

PROGRAM = Path(__file__).parents[3] / "lab" / "faults" / "programs" / "trt_removed_api.py"


@pytest.fixture
def live(fork_under_agent):
    def run(*words):
        ran = fork_under_agent([*map(str, words)], observe=True, tasks=[window_task(15, 12)])
        (record,) = ran.records
        return state_of_process(record, 0.0).live

    return run


def test_names_of_modules_that_mention_tensorrt_come_with_the_first_line_that_has_them(live):
    old, new = (live(PROGRAM, "--steps", 40, "--dose", dose)["live.tensorrt_names"] for dose in (1, 0))
    assert {"old.py:7 config.max_workspace_size", "old.py:8 BuilderFlag.FP16"} <= set(old)
    assert {"new.py:7 config.set_memory_pool_limit", "new.py:11 context.execute_async_v3"} <= set(new)
    assert not any("max_workspace_size" in name or "old.py" in name for name in new)
    at = next(at for at, line in enumerate(PROGRAM.read_text().splitlines(), 1) if "nn.Sequential(" in line)
    assert f"trt_removed_api.py:{at} nn.Sequential" in old  # it mentions the package, too
    assert not any(name.startswith(("__init__", "function.py", "mock.py")) for name in old)


def test_a_program_without_tensorrt_is_not_read(live, script):
    program = script("import torch\nnet = torch.nn.Linear(2, 2)\nfor _ in range(40): net(torch.ones(1, 2))\n")
    assert "live.tensorrt_names" not in live(program)
