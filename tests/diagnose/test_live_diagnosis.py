"""What a live run says of the caches that a program names."""

from __future__ import annotations

import sys

import pytest

from dynotune.diagnose.live_diagnosis import gather
from dynotune.launch.records.reader import Records
from dynotune.schema.events import TraceRecorded, Window
from dynotune.schema.facts import Unknown
from dynotune.schema.observation import FRESH_CACHES
from dynotune.schema.run import RunSpec
from lab.silent import Silent

NAMES_CACHES = """
import os, tempfile, time, torch
os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(tempfile.mkdtemp(), "inductor")
os.environ["TRITON_CACHE_DIR"] = os.path.expanduser("~/triton")
net = torch.nn.Linear(8, 8)
with torch.no_grad():
    while True:
        time.sleep(0.002)
        net(torch.ones(1, 8))
"""


@pytest.mark.long
def test_one_live_run_is_timed_recorded_and_tells_which_folders_are_new_in_each(tmp_path) -> None:
    (tmp_path / "program.py").write_text(NAMES_CACHES)
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    run = RunSpec(
        command=[sys.executable, "program.py"],
        cwd=tmp_path,
        env=env,
        base=tmp_path / "runs",
        lock=False,
        warmup_steps=20,
    )
    observation, path = gather(run, Silent())
    assert observation.facts[FRESH_CACHES] == "TORCHINDUCTOR_CACHE_DIR"
    assert not isinstance(observation.trace, Unknown)
    assert not isinstance(observation.attribution, Unknown)
    folders = [folder for folder in (tmp_path / "runs").iterdir() if folder.is_dir()]
    assert [folder.name for folder in folders] == [path.parent.name]
    (record,) = [record for record in Records(path.parent).update() if record.steps]
    kinds = [type(result) for _, result in sorted(record.results.items())]
    assert kinds == [Window, TraceRecorded, TraceRecorded][: len(kinds)]
