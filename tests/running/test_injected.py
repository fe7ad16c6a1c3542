"""Whether the agent can be loaded into a process, what the injected script does before anything else, and how
refusals are told."""

from __future__ import annotations

import fcntl
import os
import sys

import pytest

from dynotune.running import injected, process_files
from dynotune.running.process_files import ProcessFiles
from dynotune.schema.errors import CannotRunHere
from dynotune.schema.facts import Unknown

from .conftest import eventually

TORCH = "/opt/v/lib/python3.14/site-packages/torch/lib/libtorch_cpu.so"


def process(**fields) -> ProcessFiles:
    usual = {
        "pid": 7,
        "parent": 1,
        "name": "python",
        "state": "S",
        "start_ticks": 1,
        "arguments": ("python", "train.py"),
        "environment": {},
        "executable": "/usr/bin/python3.14",
        "libraries": frozenset({TORCH}),
    }
    return ProcessFiles(**{**usual, **fields})


def test_process_is_fit_when_it_runs_a_new_python_with_torch():
    assert injected.unfit(process()) == ""


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"libraries": frozenset()}, "not loaded torch"),
        ({"executable": "/usr/bin/python3.12"}, "runs Python 3.12"),
        ({"environment": {"PYTHON_DISABLE_REMOTE_DEBUG": "1"}}, "switched off"),
        ({"arguments": ("python", "-X", "disable-remote-debug", "train.py")}, "switched off"),
        ({"arguments": ("python", "-Xdisable-remote-debug", "train.py")}, "switched off"),
        ({"environment": {"DYNOTUNE_RUN": "/runs/1"}}, "another dynotune already"),
        ({"executable": "/usr/bin/python3.14 (deleted)"}, "replaced or removed"),
    ],
    ids=["no torch", "old", "variable", "option", "option in one word", "dynotune", "deleted"],
)
def test_process_is_unfit_when_its_files_tell_why(fields, said):
    assert said in injected.unfit(process(**fields))


@pytest.mark.parametrize(
    ("executable", "libraries", "version"),
    [
        ("/usr/bin/python3.14", (), (3, 14)),
        ("/usr/bin/python3.13t", (), (3, 13)),
        ("/usr/bin/python3", ("/usr/lib/libpython3.15.so.1.0",), (3, 15)),
        ("/app/server", ("/x/lib/python3.14/lib-dynload/_json.so",), (3, 14)),
        ("/usr/bin/python3", (), None),
    ],
    ids=["name", "free-threaded", "library", "embedded", "none"],
)
def test_version_is_read_from_file_names_when_they_have_it(executable, libraries, version):
    assert injected.version_of(process(executable=executable, libraries=frozenset(libraries))) == version


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"error": "version", "version": [3, 12, 1]}, "runs Python 3.12.1"),
        (
            {"error": "RuntimeError", "message": "Remote debugging is not enabled"},
            "switched off in process 7",
        ),
        ({"error": "PermissionError", "message": "no"}, "may not be traced"),
        ({"error": "ProcessLookupError", "message": ""}, "has ended"),
        ({"error": "OSError", "message": "\x1b[31mevil"}, "could not be loaded"),
    ],
    ids=["old", "disabled", "no right", "ended", "hostile"],
)
def test_refusal_says_what_to_do_when_the_interpreter_cannot_ask(monkeypatch, answer, said):
    monkeypatch.setattr(process_files, "read", lambda pid: process())
    error = injected._refused(answer, process())
    assert said in error.message and error.hint
    assert "\x1b" not in error.message


def test_loading_is_refused_when_the_interpreter_is_too_old(tmp_path):
    if sys.version_info >= (3, 14):
        pytest.skip("this Python can be asked")
    ours = process_files.read(os.getpid())
    place = injected.Place(tmp_path, "", (), os.getpid())
    with pytest.raises(CannotRunHere, match=r"runs Python 3\.1\d"):
        injected.load([ours], [place], tmp_path, 1)


def test_place_is_the_state_folder_when_both_see_the_same_files(tmp_path):
    place = injected.place_of(process_files.read(os.getpid()))
    assert place.base == tmp_path / "state" / "dynotune" / "joined"
    assert place.of_target(place.base / "x") == str(place.base / "x")


def test_place_is_in_the_containers_folder_when_the_target_has_another_root(tmp_path, monkeypatch):
    monkeypatch.setattr(injected.shutil, "which", lambda name: "/usr/bin/nsenter")
    root = tmp_path / "root"
    (root / "tmp").mkdir(parents=True)
    proc = tmp_path / "proc"
    for name, top in (("7", root), ("self", tmp_path)):
        (proc / name / "ns").mkdir(parents=True)
        (proc / name / "root").symlink_to(top)
        for namespace in ("mnt", "pid"):
            (proc / name / "ns" / namespace).symlink_to(f"{namespace}:[1]")
    (proc / "7" / "status").write_text("NSpid:\t7\t3\n")
    place = injected.place_of(process(), proc)
    assert place.base == root / "tmp" / f"dynotune-{os.geteuid()}"
    assert place.of_target(place.base / "x") == f"/tmp/dynotune-{os.geteuid()}/x"
    assert (place.enter[-2], place.pid) == ("--root", 3)
    monkeypatch.setattr(injected.shutil, "which", lambda name: None)
    assert isinstance(injected.place_of(process(), proc), Unknown)


def executed(tmp_path, *, until_s: float, is_held: bool) -> bool:
    """Execute the script as a target would; return whether it went on to load the agent."""
    script = tmp_path / "begin-7.py"
    values = {"folder": str(tmp_path), "script": str(script), "lock": "held.lock", "failed": "failed.txt"}
    script.write_text(injected._BEGIN.format(**values, pid=7, until_s=until_s))
    lock = os.open(tmp_path / "held.lock", os.O_RDWR | os.O_CREAT)
    try:
        if is_held:
            fcntl.flock(lock, fcntl.LOCK_EX)
        # Without torch, a script that goes on says so and loads nothing.
        hidden = sys.modules.pop("torch", None)
        try:
            exec(compile(script.read_text(), "<string>", "exec"), {})
            assert eventually(lambda: not script.exists() and not _runs())
        finally:
            if hidden is not None:
                sys.modules["torch"] = hidden
    finally:
        os.close(lock)
    return (tmp_path / "failed.txt").exists()


def _runs() -> bool:
    frames = sys._current_frames().values()
    return any(frame.f_code.co_filename == "<string>" and frame.f_code.co_name == "begin" for frame in frames)


def test_script_goes_on_when_dynotune_holds_its_lock_and_waits(tmp_path):
    assert executed(tmp_path, until_s=float("1e12"), is_held=True)
    assert (tmp_path / "failed.txt").read_text() == "no torch"


def test_script_does_nothing_when_it_is_executed_too_late(tmp_path):
    assert not executed(tmp_path, until_s=0.0, is_held=True)


def test_script_does_nothing_when_its_dynotune_is_gone(tmp_path):
    assert not executed(tmp_path, until_s=float("1e12"), is_held=False)
