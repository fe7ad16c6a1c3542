"""Commands with which Hydra starts several jobs."""

from __future__ import annotations

import pytest

from dynotune.launch.process.multirun import refuse_multirun
from dynotune.schema.errors import UsageError

HYDRA = ["import hydra\n", "import os, hydra, torch\n", "import torch\nfrom hydra import main\n"]


@pytest.mark.parametrize("script", HYDRA)
@pytest.mark.parametrize("word", ["--multirun", "-m", "hydra.mode=MULTIRUN"])
def test_multirun_is_refused_when_the_script_imports_hydra(tmp_path, script, word):
    (tmp_path / "train.py").write_text(script)
    with pytest.raises(UsageError, match="several jobs") as raised:
        refuse_multirun(["python", "train.py", word, "lr=0.1,0.2"], tmp_path)
    assert f"Leave {word} out" in (raised.value.hint or "")


@pytest.mark.parametrize(
    ("script", "command"),
    [
        ("import hydra\n", ["python", "train.py", "lr=0.1"]),
        ("import argparse\n", ["python", "train.py", "-m", "resnet"]),
        ("import hydrant\n", ["python", "train.py", "-m"]),
        ("import hydra\n", ["python", "-m", "train"]),
        ("import hydra\n", ["torchrun", "-m", "x", "train.py"]),
        ("import hydra\n", ["python", "missing.py", "--multirun"]),
    ],
)
def test_multirun_is_not_seen_in_other_commands(tmp_path, script, command):
    (tmp_path / "train.py").write_text(script)
    refuse_multirun(command, tmp_path)
