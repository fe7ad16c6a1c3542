"""Whose code it is: the user's own, or a package's, wherever that was installed."""

from __future__ import annotations

import importlib
import sys

import pytest

from dynotune.agent.core import source_location


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """On the path, as after `pip install --target`: a package and a module that are listed, and a script."""
    for name in (
        "tables_of_mine/__init__.py",
        "tables_of_mine/core/base.py",
        "small_of_mine.py",
        "train_of_mine.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("def function(): ...\n")
    info = tmp_path / "a_name_of_its_own-1.0.dist-info"
    info.mkdir()
    listed = ("tables_of_mine/__init__.py", "tables_of_mine/core/base.py", "small_of_mine.py")
    (info / "RECORD").write_text("".join(f"{name},sha256=1,10\n" for name in listed))
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def whose(name):
    module = importlib.import_module(name)
    return source_location.whose(module.function.__code__, vars(module))


def test_modules_count_as_a_packages_when_an_installer_listed_them_in_a_folder_of_any_name(folder):
    assert whose("tables_of_mine") == whose("tables_of_mine.core.base") == source_location.WHOSE_INSTALLED
    assert whose("small_of_mine") == source_location.WHOSE_INSTALLED
    # The program may lie in the same folder, as a function of a cloud does.
    assert whose("train_of_mine") == source_location.WHOSE_USER


def test_a_listing_that_cannot_be_read_makes_nobodys_code_a_packages(folder):
    (folder / "broken-1.0.dist-info").mkdir()
    (folder / "other-1.0.dist-info").mkdir()
    (folder / "other-1.0.dist-info" / "RECORD").write_bytes(b"\xff\xfe,")
    assert whose("train_of_mine") == source_location.WHOSE_USER


def test_generated_constructor_belongs_to_its_module_when_its_file_has_no_name():
    code = compile("def made(): pass", "<string>", "exec")
    made = {
        "__name__": "transformers.training_args",
        "__file__": "/env/site-packages/transformers/training_args.py",
    }
    exec(code, made)
    assert source_location.whose(made["made"].__code__, made) == source_location.WHOSE_INSTALLED
