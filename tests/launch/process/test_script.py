"""The script that a command gives to Python: told before anything runs if it is not there."""

from pathlib import Path

import pytest

from dynotune.launch.process.script import refuse_missing, script_of
from dynotune.schema.errors import UsageError


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("python train.py --epochs 3", "train.py"),
        ("/usr/bin/python3.11 -u -X faulthandler -W ignore src/train.py", "src/train.py"),
        ("python -m train", ""),
        ("python -um train", ""),
        ("python -c pass", ""),
        ("python -mtorch.distributed.run --nproc_per_node 2 train.py", ""),
        ("python -mtimeit pass", ""),
        ("python -Bmjson.tool x", ""),
        ("python -cCODE arg", ""),
        ("python -uW ignore t.py", "t.py"),
        ("python -IX dev t.py", "t.py"),
        ("python -Wignore -Xdev t.py", "t.py"),
        ("python -Wm t.py", "t.py"),
        ("python --check-hash-based-pycs never t.py", "t.py"),
        ("python -- t.py", "t.py"),
        ("python -", ""),
        ("python", ""),
        ("torchrun train.py", ""),
        ("", ""),
    ],
)
def test_script_is_the_first_word_after_the_interpreters_options(command, found):
    assert script_of(command.split()) == found


def test_script_is_refused_with_near_names_when_it_is_not_there(tmp_path):
    (tmp_path / "train.py").touch()
    refuse_missing(["python", "train.py"], tmp_path)
    refuse_missing(["python", "{run_dir}/made.py"], tmp_path)
    with pytest.raises(UsageError, match=r"There is no trian\.py") as refused:
        refuse_missing(["python", "trian.py"], tmp_path)
    assert "train.py" in refused.value.hint
    with pytest.raises(UsageError) as refused:
        refuse_missing(["python", "nowhere/train.py"], tmp_path)
    assert refused.value.hint == "Check the path."


def test_script_is_refused_with_its_target_when_it_is_a_dangling_link(tmp_path):
    (tmp_path / "train.py").symlink_to("gone.py")
    with pytest.raises(UsageError, match=r"train\.py is a link to gone\.py, which is not there"):
        refuse_missing(["python", "train.py"], tmp_path)


def test_script_is_left_to_python_when_it_cannot_be_looked_at(tmp_path, monkeypatch):
    refuse_missing(["python", "x" * 300], tmp_path)

    def denied(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", denied)
    refuse_missing(["python", "closed/train.py"], tmp_path)


def test_script_is_refused_when_it_is_a_notebook(tmp_path):
    (tmp_path / "n.ipynb").touch()
    with pytest.raises(UsageError, match="is a notebook") as refused:
        refuse_missing(["python", "n.ipynb"], tmp_path)
    assert "nbconvert" in refused.value.hint
