"""`dynotune memory`: of a file, of a command, and what is refused."""

import json
import os
import pickle
import sys

import pytest

from dynotune import cli
from dynotune.cli.memory import batch_settings
from dynotune.schema.errors import UsageError

SNAPSHOT = {
    "segments": [
        {
            "device": 0,
            "address": 1 << 21,
            "total_size": 2 << 20,
            "stream": 0,
            "segment_type": "small",
            "allocated_size": 512,
            "active_size": 512,
            "frames": [],
            "blocks": [
                {
                    "address": 1 << 21,
                    "size": 512,
                    "requested_size": 500,
                    "state": "active_allocated",
                    "frames": [{"filename": "train.py", "line": 31, "name": "step"}],
                },
                {"address": (1 << 21) + 512, "size": (2 << 20) - 512, "state": "inactive", "frames": []},
            ],
        }
    ],
    "device_traces": [[]],
}


@pytest.fixture
def memory(capsys):
    def run(*words):
        with pytest.raises(SystemExit) as ended:
            cli.main(["memory", *map(str, words)])
        out, err = capsys.readouterr()
        return ended.value.code, out, err

    return run


def test_a_snapshot_is_explained(memory, tmp_path):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(SNAPSHOT))
    code, out, err = memory(path)
    assert (code, err) == (0, "")
    assert "2 MiB reserved" in out
    assert "500 B train.py:31 step" in out
    assert json.loads(memory("--json", "-", path)[1])["schema"] == "dynotune.memory/1"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("snapshot.pickle", b"\x80\x04damaged"),
        ("model.pickle", pickle.dumps({"weights": [1.0]})),
        ("cut.pickle", pickle.dumps(SNAPSHOT)[:-40]),
        ("trace.json", b'{"traceEvents": []}'),
    ],
)
def test_a_file_that_is_no_snapshot_is_a_usage_error_that_names_it(memory, tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    code, out, err = memory(path)
    assert (code, out) == (2, "")
    assert str(path) in err
    assert "mistake" not in err


class Evil:
    def __reduce__(self):
        return os.system, ("touch executed",)


def test_a_pickle_made_to_harm_executes_nothing(memory, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.pickle").write_bytes(pickle.dumps(Evil()))
    assert memory(tmp_path / "evil.pickle")[0] == 2
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("snapshot.pickle", "--", "python", "train.py"), "both given"),
        (("snapshot.pickle", "--predict", "8"), "--predict applies only to a command"),
        (("--predict", "64", "--", "python", "train.py"), "--predict needs runs with two batch sizes"),
        (("--gpu", "Voodoo2", "--", "python", "train.py"), "neither a GPU that dynotune knows"),
        (("--values", "arg.batch=8", "--", "python", "{batch}"), "does not name two batch sizes"),
        (("--values", "loader.num_workers=1,2", "--", "python"), "does not name two batch sizes"),
        ((), "There is no command"),
    ],
)
def test_memory_refuses_options_that_do_not_go_together(memory, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    code, _, err = memory(*words)
    assert code == 2
    assert said in err.replace("\n", " ")


def test_values_are_settings_of_the_argument():
    assert [str(one) for one in batch_settings("arg.batch=8, 16,8")] == ["arg.batch=8", "arg.batch=16"]
    assert [str(one) for one in batch_settings("env.BATCH=8,16")] == ["env.BATCH=8", "env.BATCH=16"]
    assert batch_settings(None) == []
    with pytest.raises(UsageError):
        batch_settings("batch")


def test_a_program_without_a_device_has_no_memory_to_account_for(user):
    user.write(
        "train.py", "import torch\nnet = torch.nn.Linear(8, 8)\nwhile True:\n    net(torch.ones(1, 8))\n"
    )
    done = user.types("memory", "--no-lock", "--run-dir", str(user.runs), "--", sys.executable, "train.py")
    assert done.returncode == 3
    assert "the program uses no CUDA device" in done.stderr


def test_memory_that_runs_out_is_explained(user):
    said = (
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which "
        "1.06 GiB is "
        "free. Including non-PyTorch memory, this process has 78.00 GiB memory in use. Of the allocated "
        "memory "
        "70.00 GiB is allocated by PyTorch, and 3.50 GiB is reserved by PyTorch but unallocated."
    )
    user.write("train.py", f"import torch\nraise torch.OutOfMemoryError({said!r})\n")
    done = user.types("memory", "--no-lock", "--run-dir", str(user.runs), "--", sys.executable, "train.py")
    assert done.returncode == 4
    for part in (
        "2.00 GiB more was asked for",
        "70.00 GiB in live tensors",
        "3.50 GiB reserved but free only in",
    ):
        assert part in done.stderr.replace("\n", " ")
