"""The home folder of a user who may have none, and where dynotune's files lie then."""

from __future__ import annotations

import os
import pwd
import tempfile
from pathlib import Path

import pytest

from dynotune.schema import private
from dynotune.schema.errors import UsageError
from dynotune.schema.home import expanded, home


@pytest.fixture
def account(monkeypatch, tmp_path):
    """Gives this user id an account with a home folder, or none."""
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.chdir(tmp_path)

    def give(folder):
        def getpwuid(user):
            if folder is None:
                raise KeyError(user)
            return pwd.struct_passwd(("me", "x", user, user, "", folder, "/bin/sh"))

        monkeypatch.setattr(pwd, "getpwuid", getpwuid)

    return give


@pytest.mark.parametrize("named", [None, "", "relative", "~"])
def test_home_is_that_of_the_account_when_the_variable_is_no_absolute_path(account, monkeypatch, named):
    account("/home/me")
    if named is not None:
        monkeypatch.setenv("HOME", named)
    assert home() == Path("/home/me") and expanded(Path("~/x")) == Path("/home/me/x")
    assert private.state_folder() == Path("/home/me/.local/state/dynotune")


@pytest.mark.parametrize("folder", [None, "", "."])
def test_state_lies_among_temporary_files_when_the_user_has_no_home(account, folder):
    """In no folder of the project, and none that is called `~`."""
    account(folder)
    assert home() is None
    assert private.state_folder() == Path(tempfile.gettempdir()) / f"dynotune-{os.geteuid()}"
    with pytest.raises(UsageError, match="there is none"):
        expanded(Path("~/runs"))


@pytest.mark.parametrize("state", ["", "relative", " "])
def test_state_folder_of_the_environment_is_left_out_when_it_is_relative(account, monkeypatch, state):
    account("/home/me")
    monkeypatch.setenv("XDG_STATE_HOME", state)
    assert private.state_folder() == Path("/home/me/.local/state/dynotune")


def test_a_path_is_relative_to_the_given_folder_when_it_is_not_absolute(account, tmp_path):
    account("/home/me")
    assert expanded(Path("a/b")) == tmp_path / "a" / "b"
    assert expanded(Path("a"), below=Path("/x")) == Path("/x/a")
    assert expanded(Path("/a"), below=Path("/x")) == Path("/a")
    assert expanded(Path()) == tmp_path
    with pytest.raises(UsageError, match="there is none"):
        expanded(Path("~nobody-of-this-name/x"))
