"""Counters of the real allocator, which the program resets."""

import json
import os
import subprocess
import sys

import pytest

from dynotune.launch.process import environment
from dynotune.launch.records.reader import Records
from dynotune.schema.events import MemoryPeaks

pytestmark = pytest.mark.gpu

LARGE_BYTES = 1 << 30
RESETS = f"""
import torch
large = torch.empty({LARGE_BYTES}, dtype=torch.uint8, device="cuda")
del large
RESET
small = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
print(torch.cuda.max_memory_allocated())
"""


@pytest.mark.parametrize(
    "reset",
    [
        "torch.cuda.reset_peak_memory_stats()",
        "torch.cuda.reset_max_memory_allocated()",
        "torch.accelerator.reset_peak_memory_stats()",
        "torch.cuda.reset_accumulated_memory_stats(); torch.cuda.reset_peak_memory_stats()",
    ],
)
def test_peak_is_of_the_whole_process_when_the_program_resets_it(tmp_path, reset):
    import torch

    if "accelerator" in reset and not hasattr(torch.accelerator, "reset_peak_memory_stats"):
        pytest.skip("this torch has no such function")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "plan.json").write_text(json.dumps({"settings": []}))
    (tmp_path / "program.py").write_text(RESETS.replace("RESET", reset))
    env = {**os.environ, "DYNOTUNE_RUN": str(folder), "PYTHONPATH": str(environment.AGENT / "bootstrap")}
    done = subprocess.run(
        [sys.executable, "program.py"], env=env, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < LARGE_BYTES, "the program sees what it has reset"
    (record,) = Records(folder).update()
    assert record.last(MemoryPeaks).peak_device_bytes >= LARGE_BYTES
