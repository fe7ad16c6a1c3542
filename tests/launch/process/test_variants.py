"""What is started under settings of the launch."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from dynotune.knobs import of_launch, parse
from dynotune.launch.process import variants
from dynotune.schema.errors import UsageError

COMMAND = ["python", "train.py", "--batch={batch}", "--name", "{batch}-{run_dir}"]


def made(*texts: str, command=COMMAND, env=None, cwd=Path("/")):
    return variants.variant(command, env or {}, [parse(text) for text in texts], cwd)


def test_a_placeholder_is_filled_wherever_it_stands_and_others_are_left():
    assert made("arg.batch=32").command == ["python", "train.py", "--batch=32", "--name", "32-{run_dir}"]
    assert made().command == COMMAND


def test_a_value_may_hold_what_looks_like_another_placeholder_or_an_equals_sign():
    assert made("arg.a=x=1 {b}", command=["run", "{a}"]).command == ["run", "x=1 {b}"]


def test_without_a_value_a_word_of_its_own_is_left_out_and_part_of_a_word_is_empty():
    assert made("arg.x=", command=["python", "{x}", "--name={x}"]).command == ["python", "--name="]
    assert made("arg.x=--half", command=["python", "{x}"]).command == ["python", "--half"]


def test_a_placeholder_that_the_command_lacks_is_refused_with_where_to_write_it():
    with pytest.raises(UsageError, match=r"no placeholder \{width\}") as refused:
        made("arg.width=2")
    assert "--width {width}" in refused.value.hint


@pytest.mark.parametrize("name", ["", "a-b", "1", "run_dir"])
def test_a_name_that_no_placeholder_can_have_is_refused(name):
    with pytest.raises(UsageError, match="cannot name a placeholder"):
        parse(f"arg.{name}=1")


def test_an_arm_that_leaves_open_what_the_other_fills_is_refused():
    with pytest.raises(UsageError, match=r"The baseline has no value for \{batch\}") as refused:
        variants.refuse_missing([parse("arg.batch=4")], [])
    assert "--baseline arg.batch=VALUE" in refused.value.hint
    with pytest.raises(UsageError, match="The candidate has no value"):
        variants.refuse_missing([], [parse("arg.batch=4")])
    variants.refuse_missing([parse("arg.batch=4")], [parse("arg.batch=8")])


@pytest.fixture
def other(tmp_path):
    """An environment with a Python and one script."""
    (tmp_path / "bin").mkdir()
    for name in ("python", "torchrun"):
        (tmp_path / "bin" / name).symlink_to(sys.executable)
    return tmp_path / "bin" / "python"


def test_another_interpreter_takes_the_first_word_and_leads_path(other):
    found = made(f"python={other}", env={"PATH": "/usr/bin", "VIRTUAL_ENV": "/old", "PYTHONHOME": "/old"})
    # The link is kept: an environment is told by the path that it was started by.
    assert found.command[0] == str(other)
    assert found.env == {"PATH": f"{other.parent}{os.pathsep}/usr/bin"}


def test_a_script_is_the_one_beside_the_interpreter(other):
    assert made(f"python={other}", command=["torchrun", "train.py"]).command[0] == str(
        other.parent / "torchrun"
    )
    with pytest.raises(UsageError, match="no accelerate beside it"):
        made(f"python={other}", command=["accelerate", "launch"])


def test_python_variant_is_refused_when_its_path_is_no_interpreter(tmp_path):
    (tmp_path / "notes").write_text("")
    (tmp_path / "notes").chmod(0o644)
    for path in (tmp_path / "nowhere", tmp_path / "notes", tmp_path):
        with pytest.raises(UsageError, match="is not a program"):
            made(f"python={path}")


def test_only_settings_of_the_launch_are_its_own():
    settings = [parse("arg.a=1"), parse("loader.num_workers=2"), parse("git.ref=main"), parse("env.A=1")]
    assert [one.knob for one in of_launch(settings)] == ["arg.a", "git.ref"]
