from __future__ import annotations

import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from dynotune import cli
from dynotune.cli import demo, tune
from dynotune.schema.errors import CannotRunHere
from dynotune.schema.setting import Setting
from dynotune.schema.study import Study

photographs = demo.module("demo/photographs.py")
image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")


@pytest.fixture
def six_photographs(monkeypatch):
    monkeypatch.setattr(photographs, "NUM_PHOTOGRAPHS", 6)


def test_the_demo_tunes_the_example_script_and_ends_with_answer_use_and_report(
    monkeypatch, capsys, tmp_path, six_photographs
):
    calls = []

    def studied(request, budget_s):
        calls.append((request, budget_s))
        folder = tmp_path / "study"
        folder.mkdir()
        for name in ("recipe.toml", "report.html"):
            (folder / name).write_text("", encoding="utf-8")
        return folder, Study(
            id="study",
            run=request.run.recorded,
            budget_s=budget_s,
            verdict="So it is.",
            recipe=[Setting("loader.num_workers", 1)],
        )

    monkeypatch.setattr(tune, "studied", studied)
    monkeypatch.setattr(demo, "_check_packages", lambda: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "160")
    with pytest.raises(SystemExit) as end:
        cli.main(["demo", "--run-dir", str(tmp_path / "runs")])
    assert end.value.code == 0
    ((request, _),) = calls
    assert request.extra == []
    assert request.run.base == tmp_path / "runs"
    python, script, folder, *_epochs = request.run.command
    assert (Path(python).absolute(), Path(script).name) == (Path(sys.executable), "train_images.py")
    assert len(list(Path(folder).glob("*/*.jpg"))) == 6
    out, err = capsys.readouterr()
    assert "So it is." in out
    # The command to be pasted names the recipe where it is.
    answer, use, report = out.rstrip().splitlines()[-3:]
    assert answer.startswith("verdict  ") and report == f"report   {tmp_path / 'study' / 'report.html'}"
    assert use.startswith(f"use it   dynotune run --recipe {tmp_path / 'study' / 'recipe.toml'} -- ")
    assert "train_images.py" in err


def test_the_demo_says_which_packages_its_interpreter_lacks(monkeypatch):
    monkeypatch.setattr(demo.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CannotRunHere, match="torch and numpy and pillow"):
        demo._check_packages()


def test_the_example_that_the_demo_trains_is_found():
    assert "DataLoader" in demo.example("train_images.py").read_text(encoding="utf-8")
    with pytest.raises(CannotRunHere):
        demo.example("no_such_example.py")


def test_a_photograph_has_about_the_size_and_compresses_about_as_photographs_do(tmp_path):
    rng = np.random.default_rng(1)
    for name in photographs.CLASSES:
        picture = photographs.photograph(name, rng)
        assert 400 < min(picture.size) <= max(picture.size) < 720
        picture.save(tmp_path / "one.jpg", quality=88)
        bits_per_pixel = 8 * (tmp_path / "one.jpg").stat().st_size / (picture.width * picture.height)
        assert 0.4 < bits_per_pixel < 4


def test_photographs_are_written_once(tmp_path, six_photographs):
    told = []
    folder = photographs.photographs(tmp_path, progress=told.append)
    assert told == [1, 2, 3, 4, 5, 6]
    assert photographs.photographs(tmp_path, progress=told.append) == folder
    assert len(told) == 6
    assert len({image.open(file).size for file in folder.glob("*/*.jpg")}) > 1


def test_photographs_that_were_interrupted_leave_nothing_behind(tmp_path, six_photographs):
    def interrupt(done: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        photographs.photographs(tmp_path, progress=interrupt)
    assert list(tmp_path.iterdir()) == []


def test_two_that_write_photographs_at_once_get_the_same_whole_folder(tmp_path, six_photographs):
    together = threading.Barrier(2)
    folders = []

    def wait_for_the_other(done: int) -> None:
        if done == 6:
            together.wait(timeout=60)

    def write() -> None:
        folders.append(photographs.photographs(tmp_path, progress=wait_for_the_other))

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert folders[0] == folders[1]
    assert len(list(folders[0].glob("*/*.jpg"))) == 6
    assert list(tmp_path.iterdir()) == [folders[0]]


def test_a_cache_that_cannot_be_written_is_an_error_that_says_so(tmp_path, six_photographs):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CannotRunHere, match="Cannot write the demo's photographs"):
        photographs.photographs(tmp_path / "file" / "cache")
