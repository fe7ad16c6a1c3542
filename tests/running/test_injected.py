"""Whether the agent can be loaded into a process, what the injected script does before anything else, and how
refusals are told."""

from __future__ import annotations

import fcntl
import json
import os
import py_compile
import subprocess
import sys
import types

import pytest

from dynotune.running import injected, process_files
from dynotune.running.process_files import ProcessFiles
from dynotune.running.shared_folder import SharedFolder
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
        ({"executable": "/opt/app/trainer"}, "no Python interpreter"),
        ({"executable": "/usr/bin/python3.14t"}, "free-threaded"),
        ({"libraries": frozenset({TORCH, "/usr/lib/libpython3.14t.so.1.0"})}, "free-threaded"),
    ],
    ids=[
        "no torch",
        "old",
        "variable",
        "option",
        "option in one word",
        "dynotune",
        "deleted",
        "frozen",
        "free-threaded",
        "free-threaded library",
    ],
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
    shared = SharedFolder(tmp_path, str(tmp_path), is_own=True)
    with pytest.raises(CannotRunHere, match=r"runs Python 3\.1\d"):
        injected.load([ours], [injected.place_of(ours)], tmp_path, shared, 1)


def status(**fields: str) -> str:
    usual = {"NSpid": "7\t3", "Uid": "0\t0\t0\t0", "CapEff": "00ff", "CapBnd": "00ff"}
    confined = {"NoNewPrivs": "0", "Seccomp": "0", "Seccomp_filters": "0"}
    return "".join(f"{name}:\t{value}\n" for name, value in {**usual, **confined, **fields}.items())


@pytest.fixture
def proc(tmp_path, monkeypatch):
    """Files of a process with another root and with dynotune's rights."""
    monkeypatch.setattr(injected.shutil, "which", lambda name: "/usr/bin/nsenter")
    folder = tmp_path / "proc"
    for name, top in (("7", tmp_path / "root"), ("self", tmp_path)):
        (folder / name / "ns").mkdir(parents=True)
        (folder / name / "root").symlink_to(top)
        (folder / name / "status").write_text(status())
        for namespace in ("mnt", "pid", "user"):
            (folder / name / "ns" / namespace).symlink_to(f"{namespace}:[1]")
    return folder


def test_process_is_asked_directly_when_both_see_the_same_files():
    place = injected.place_of(process_files.read(os.getpid()))
    assert (place.root, place.enter, place.pid) == ("", (), os.getpid())


def test_process_is_entered_when_it_has_another_root(proc, tmp_path, monkeypatch):
    place = injected.place_of(process(), proc)
    assert (place.root, place.enter[-2], place.pid) == (str(tmp_path / "root"), "--root", 3)
    program = process(executable=f"{place.root}/usr/bin/python3.14")
    assert injected._interpreter(program, place) == "/usr/bin/python3.14"
    monkeypatch.setattr(injected.shutil, "which", lambda name: None)
    assert isinstance(injected.place_of(process(), proc), Unknown)


@pytest.mark.parametrize("is_killed", [True, False])
def test_folder_is_removed_when_dynotune_is_killed_while_the_agent_is_compiled(tmp_path, is_killed):
    (tmp_path / "run" / "dynotune" / "agent").mkdir(parents=True)
    with (tmp_path / "run" / injected.LOCK).open("w") as lock:
        if not is_killed:
            fcntl.flock(lock, fcntl.LOCK_EX)
        code = f"import sys; sys.remote_exec = None\n{injected._ASK}"
        words = [sys.executable, "-I", "-S", "-c", code, str(tmp_path / "run"), "[]"]
        said = subprocess.run(words, capture_output=True, check=True).stdout
    assert (tmp_path / "run").exists() is not is_killed
    assert json.loads(said).get("error") == ("killed" if is_killed else None)


@pytest.mark.parametrize(
    "fields",
    [
        {"CapEff": "007f"},
        {"CapBnd": "007f"},
        {"NoNewPrivs": "1"},
        {"Seccomp": "2"},
        {"Seccomp_filters": "1"},
        {"Uid": "5\t5\t5\t5"},
        {"CapEff": "?"},
    ],
    ids=["effective", "bounding", "no new", "seccomp", "filters", "user", "unreadable"],
)
def test_process_is_not_entered_when_it_has_fewer_rights(proc, fields):
    (proc / "7" / "status").write_text(status(**fields))
    assert "rights" in injected.place_of(process(), proc).reason


def test_process_is_not_entered_when_its_user_counts_elsewhere(proc):
    (proc / "7" / "ns" / "user").unlink()
    (proc / "7" / "ns" / "user").symlink_to("user:[2]")
    assert "fewer rights" in injected.place_of(process(), proc).reason


def test_interpreter_is_our_own_when_it_can_ask_the_process(proc):
    place = injected.Place("", ("/", "mnt:[1]"), (), 7)
    ours = process(
        executable=f"/opt/python{sys.version_info[0]}.{sys.version_info[1]}", libraries=frozenset()
    )
    assert injected._interpreter(ours, place) == sys.executable
    assert injected._interpreter(process(executable="/opt/python3.99"), place) == "/opt/python3.99"


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        (b'warning\n{"failed": {}}\nwarning', {"failed": {}}),
        (
            b'{"failed": {"7": {"error": "OSError", "message": "no"}}}',
            {"failed": {"7": {"error": "OSError", "message": "no"}}},
        ),
        (b'{"error": "version"}', {"error": "version"}),
        (b"7", "no answer"),
        (b'["failed"]', "no answer"),
        (b'{"failed": {"7": []}}', "no answer"),
        (b'{"error": 1}', "no answer"),
        (b"[" * 60_000, "[["),
        (b"", "it said nothing"),
    ],
    ids=["last", "failed", "error", "number", "list", "no error", "no kind", "deep", "nothing"],
)
def test_answer_is_an_error_when_it_has_another_form(said, answer):
    found = injected._answer(said)
    if isinstance(answer, dict):
        assert found == answer
    else:
        assert found["error"] == "start" and answer in found["message"]


def test_reading_ends_when_a_program_prints_without_end():
    endless = "while True: print('x' * 4096)"
    said = injected._said([sys.executable, "-I", "-S", "-c", endless], {})
    assert len(said) == injected._MOST_BYTES


def test_secrets_are_kept_from_the_interpreter_when_it_is_started(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    seen = []
    monkeypatch.setattr(injected, "_said", lambda words, env: seen.append(env) or b'{"failed": {}}')
    ours = process_files.read(os.getpid())
    assert injected._ask(ours, injected.place_of(ours), "", []) == {"failed": {}}
    assert set(seen[0]) <= {"PATH", "LANG", "LC_ALL"}


def test_nothing_is_asked_when_the_id_is_another_process_by_now(monkeypatch):
    monkeypatch.setattr(injected, "_said", lambda *_: pytest.fail("an interpreter was started"))
    ours = process_files.read(os.getpid())._replace(start_ticks=1)
    place = injected.Place("", ("/", "mnt:[1]"), (), ours.pid)
    assert injected._ask(ours, place, "", [])["error"] == "ProcessLookupError"


def executed(tmp_path, *, until_s: float, is_held: bool, has_torch: bool = False) -> bool:
    """Execute the script as a target would; return whether it went on to load the agent."""
    script = tmp_path / "begin-7.py"
    values = {"folder": str(tmp_path), "script": str(script), "lock": "held.lock", "failed": "failed.txt"}
    script.write_text(injected._BEGIN.format(**values, pid=7, until_s=until_s))
    lock = os.open(tmp_path / "held.lock", os.O_RDWR | os.O_CREAT)
    try:
        if is_held:
            fcntl.flock(lock, fcntl.LOCK_EX)
        # Without torch, a script that goes on says so and loads nothing.
        hidden = None if has_torch else sys.modules.pop("torch", None)
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


def test_script_leaves_no_module_when_the_agent_cannot_be_loaded(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    (tmp_path / "dynotune" / "agent").mkdir(parents=True)
    source = tmp_path / "agent.py"
    begun = tmp_path / "begun"
    lines = (
        "import sys",
        "sys.modules[__name__ + '.core'] = sys",
        f"open({str(begun)!r}, 'w').close()",
        "raise ValueError",
    )
    source.write_text("\n".join(lines))
    py_compile.compile(str(source), cfile=str(tmp_path / "dynotune" / "agent" / "__init__.pyc"))
    executed(tmp_path, until_s=float("1e12"), is_held=True, has_torch=True)
    assert eventually(begun.exists)
    assert eventually(lambda: not [name for name in sys.modules if name.startswith("_dynotune_agent")])
