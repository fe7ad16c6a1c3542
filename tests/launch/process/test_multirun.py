"""Commands with which Hydra starts several jobs."""

from __future__ import annotations

import pytest

from dynotune.launch.process.multirun import refuse_multirun
from dynotune.schema.errors import UsageError

MAIN = "@hydra.main(config_path='.')\ndef train(config): ...\n"
HYDRA = [
    f"import hydra\n{MAIN}",
    f"import os, hydra, torch\n{MAIN}",
    f"import hydra as h\n{MAIN.replace('hydra.', 'h.')}",
    "import torch\nfrom hydra import main\n",
]


@pytest.mark.parametrize("script", HYDRA)
@pytest.mark.parametrize("word", ["--multirun", "-m", "hydra.mode=MULTIRUN"])
def test_multirun_is_refused_when_the_script_has_hydra_main(tmp_path, script, word):
    (tmp_path / "train.py").write_text(script)
    with pytest.raises(UsageError, match="several jobs") as raised:
        refuse_multirun(["python", "train.py", word, "lr=0.1,0.2"], tmp_path)
    assert f"Leave {word} out" in (raised.value.hint or "")


@pytest.mark.parametrize(
    ("script", "command"),
    [
        (HYDRA[0], ["python", "train.py"]),
        (HYDRA[0], ["python", "train.py", "lr=0.1"]),
        (HYDRA[0], ["python", "train.py", "-m", "resnet50"]),
        (HYDRA[0], ["python", "-m", "pytest", "train.py", "-m", "slow"]),
        ('"""Fast again:\nfrom hydra we came.\nhydra.main"""\n', ["python", "train.py", "-m"]),
        ("import hydra\n", ["python", "train.py", "-m"]),
        ("import argparse\n", ["python", "train.py", "-m", "resnet"]),
        ("import hydrant\n", ["python", "train.py", "-m"]),
        ("not Python: hydra.main\n", ["python", "train.py", "-m"]),
        (HYDRA[0], ["python", "-m", "train"]),
        (HYDRA[0], ["torchrun", "-m", "x", "train.py"]),
        (HYDRA[0], ["python", "missing.py", "--multirun"]),
    ],
)
def test_multirun_is_not_seen_in_other_commands(tmp_path, script, command):
    (tmp_path / "train.py").write_text(script)
    refuse_multirun(command, tmp_path)
