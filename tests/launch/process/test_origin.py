"""Folders that were begun here, and those that come from elsewhere."""

from __future__ import annotations

import os
import shutil

import msgspec
import pytest
from msgspec.structs import replace

from dynotune.launch.process import origin
from dynotune.schema import document
from dynotune.schema.comparison import Comparison
from dynotune.schema.errors import UsageError
from dynotune.schema.setting import Setting
from dynotune.schema.study import Candidate, Study

from ...fakes import of_run

TYPED, TUNES, EVIL = (
    Setting("env.A", "1"),
    Setting("env.OMP_DYNAMIC", "true"),
    Setting("env.LD_PRELOAD", "/evil.so"),
)


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


def compared(*settings, command=("python", "t.py"), **fields):
    return of_run(Comparison, id="c", command=list(command), candidate_settings=list(settings), **fields)


def typed(begun, *settings, command=()):
    return replace(begun.run, command=list(command), settings=list(settings))


def test_a_folder_that_was_begun_here_goes_on_without_a_word(folder, tmp_path):
    begun = compared(TYPED, TUNES)
    origin.mark(folder, begun)
    assert origin.to_type(folder, begun) == ([], [])
    origin.refuse_foreign(folder, begun, typed(begun))
    moved = shutil.copytree(folder, tmp_path / "moved")
    origin.refuse_foreign(moved, replace(begun, run=replace(begun.run, window_steps=7)), typed(begun))


def test_a_key_that_another_user_made_marks_nothing(folder, state):
    if os.geteuid() != 0:
        pytest.skip("needs root to give files away")
    begun = compared(TYPED)
    origin.mark(folder, begun)
    os.chown(state / "dynotune" / "origin.key", 65534, 65534)
    assert origin.to_type(folder, begun) == (["python", "t.py"], [TYPED])


def test_a_link_in_the_place_of_the_key_in_the_making_is_not_followed(folder, state, tmp_path):
    (state / "dynotune").mkdir(parents=True)
    (tmp_path / "precious").write_text("as it was")
    (state / "dynotune" / f"origin.key.{os.getpid()}").symlink_to(tmp_path / "precious")
    origin.mark(folder, compared(TYPED))
    assert origin.to_type(folder, compared(TYPED)) == ([], [])
    assert (tmp_path / "precious").read_text() == "as it was"


def test_a_folder_that_was_begun_here_with_bytes_that_are_no_text_goes_on(folder):
    begun = compared(Setting("env.A", "\udcff"), command=["python", "\udcff.py"])
    origin.mark(folder, begun)
    assert origin.to_type(folder, document.encode(begun)) == ([], [])
    (folder / origin.FILE).unlink()
    with pytest.raises(UsageError) as refused:
        origin.refuse_foreign(folder, begun, typed(begun))
    assert r"--set $'env.A=\xff' -- python $'\xff.py'" in refused.value.hint


def test_the_key_is_the_users_alone_and_is_made_once(folder, state):
    origin.mark(folder, compared())
    (key,) = (state / "dynotune").iterdir()
    assert key.stat().st_mode & 0o777 == 0o600
    before = key.read_bytes()
    origin.mark(folder, compared())
    assert key.read_bytes() == before and len(before) == 32


@pytest.mark.parametrize("marked_by", ["nobody", "another", "garbage"])
def test_settings_from_elsewhere_must_be_typed_by_the_user(folder, tmp_path, monkeypatch, marked_by):
    begun = compared(EVIL, TUNES, command=["python", "t.py", "a b"])
    if marked_by == "another":
        with monkeypatch.context() as elsewhere:
            elsewhere.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
            origin.mark(folder, begun)
    elif marked_by == "garbage":
        (folder / origin.FILE).write_bytes(b"\xff{")
    assert origin.to_type(folder, begun) == (["python", "t.py", "a b"], [EVIL])
    with pytest.raises(UsageError, match="not begun by you on this machine") as refused:
        origin.refuse_foreign(folder, begun, typed(begun))
    assert "--set env.LD_PRELOAD=/evil.so -- python t.py 'a b'" in refused.value.hint
    for now in (
        typed(begun, EVIL),
        typed(begun, command=begun.run.command),
        typed(begun, EVIL, command=["sh"]),
    ):
        with pytest.raises(UsageError):
            origin.refuse_foreign(folder, begun, now)
    origin.refuse_foreign(folder, begun, typed(begun, EVIL, command=begun.run.command))


def test_settings_put_into_a_folder_of_ones_own_must_be_typed_too(folder):
    begun = compared(TYPED)
    origin.mark(folder, begun)
    for changed in (
        replace(begun, candidate_settings=[TYPED, EVIL]),
        replace(begun, run=replace(begun.run, settings=[EVIL])),
        replace(begun, run=replace(begun.run, command=["sh", "-c", "evil"])),
        replace(begun, run=replace(begun.run, cwd=folder)),
    ):
        with pytest.raises(UsageError, match="foreign code"):
            origin.refuse_foreign(folder, changed, typed(begun))


def test_a_study_tries_what_was_asked_for_when_it_was_begun_and_what_tunes(folder):
    words = {"extra": ["env.B=2", "compile.mode"], "values": ["env.C=x,y"], "budget_s": 1.0}
    begun = of_run(Study, id="s", command=["python"], settings=[TYPED], **words)
    origin.mark(folder, begun)
    asked = [Setting("env.B", "2"), Setting("env.C", "x"), Setting("env.C", "y"), TUNES]
    found = replace(
        begun, candidates=[Candidate(setting=one, effect="semantics") for one in asked], recipe=asked
    )
    origin.refuse_foreign(folder, found, typed(begun))
    with pytest.raises(UsageError):
        origin.refuse_foreign(folder, replace(found, selected=[EVIL]), typed(begun))
    with pytest.raises(UsageError):
        origin.refuse_foreign(folder, replace(found, extra=["env.LD_PRELOAD=/evil.so"]), typed(begun))


def test_secrets_do_not_count(folder):
    begun = compared(Setting("env.HF_TOKEN", "abc-1"), command=["t", "--token", "abc-1"])
    origin.mark(folder, begun)
    assert b"abc-1" not in (folder / origin.FILE).read_bytes()
    kept = document.without_secrets(begun)
    origin.refuse_foreign(folder, kept, typed(begun))
    (folder / origin.FILE).unlink()
    now = typed(begun, Setting("env.HF_TOKEN", "abc-2"), command=["t", "--token", "abc-2"])
    origin.refuse_foreign(folder, kept, now)


def test_without_a_place_for_the_key_everything_is_typed(folder, state):
    state.mkdir()
    (state / "dynotune").write_text("no folder")
    begun = compared(TYPED)
    origin.mark(folder, begun)
    assert list(folder.iterdir()) == []
    assert origin.to_type(folder, msgspec.json.encode(msgspec.to_builtins(begun, enc_hook=str))) == (
        ["python", "t.py"],
        [TYPED],
    )
