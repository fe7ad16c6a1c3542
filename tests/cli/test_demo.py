from __future__ import annotations

import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from dynotune import cli
from dynotune.cli import demo, photographs
from dynotune.schema.comparison import Comparison
from dynotune.schema.errors import CannotRunHere
from dynotune.schema.setting import Setting

image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")


@pytest.fixture
def six_photographs(monkeypatch):
    monkeypatch.setattr(photographs, "NUM_PHOTOGRAPHS", 6)


def test_the_demo_compares_each_arm_on_the_example_script(monkeypatch, capsys, tmp_path, six_photographs):
    calls = []

    def compare(settings, command, *, run_dir, budget_s):
        calls.append((settings, command, run_dir))
        chosen = [Setting(*text.split("=", 1)) for text in settings]
        return Comparison(
            id=str(len(calls)),
            command=command,
            settings=chosen,
            against=[],
            verdict="same",
            speedup=1.0,
            num_pairs=4,
        )

    monkeypatch.setattr(demo, "_compare", compare)
    monkeypatch.setattr(demo, "_check_packages", lambda: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "160")
    with pytest.raises(SystemExit) as end:
        cli.main(["demo", "--run-dir", str(tmp_path / "runs")])
    assert end.value.code == 0
    assert [settings for settings, _, _ in calls] == list(demo.ARMS)
    for _, command, run_dir in calls:
        assert command[0] == sys.executable
        assert Path(command[1]).name == "train_images.py"
        assert len(list(Path(command[2]).glob("*/*.jpg"))) == 6
        assert run_dir == tmp_path / "runs"
    out = capsys.readouterr().out
    assert out.count("no effect: within ±1%") == 2 * len(demo.ARMS)


def test_the_demo_leaves_out_what_its_time_no_longer_affords(monkeypatch, capsys, tmp_path, six_photographs):
    calls = []

    def compare(settings, command, *, run_dir, budget_s):
        calls.append(settings)
        return Comparison(id="1", command=command, settings=[Setting("loader.num_workers", "2")], against=[], run_s=60)

    monkeypatch.setattr(demo, "_compare", compare)
    monkeypatch.setattr(demo, "_check_packages", lambda: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(SystemExit) as end:
        cli.main(["demo", "--run-dir", str(tmp_path / "runs")])
    assert end.value.code == 0
    assert calls == [demo.ARMS[0]]
    assert "a run takes 60 s here" in capsys.readouterr().err


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
