"""Each example runs for a few steps on the CPU, in a process of its own."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def start(interpreters, tmp_path_factory):
    """`start(name, *arguments, cwd=...)`: the example and what came of it."""

    def start(name: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        words = [str(EXAMPLES / name), *arguments]
        return interpreters["compiler"].run(
            words, cwd=cwd, folder=tmp_path_factory.mktemp("output"), env=os.environ
        )

    return start


@pytest.fixture
def run(start):
    """`run(name, *arguments, cwd=...)`: the lines that the example printed."""

    def run(name: str, *arguments: str, cwd: Path) -> list[str]:
        done = start(name, *arguments, cwd=cwd)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run


@pytest.fixture(scope="module")
def photographs(tmp_path_factory) -> Path:
    """Six JPEG files in two classes."""
    image = pytest.importorskip("PIL.Image")
    root = tmp_path_factory.mktemp("photographs")
    rng = np.random.default_rng(0)
    for name in ("sand", "sky"):
        (root / name).mkdir()
        for number in range(3):
            pixels = rng.integers(0, 255, (48, 64, 3), dtype=np.uint8)
            image.fromarray(pixels).save(root / name / f"{number}.jpg")
    return root


def test_train_images_trains_on_a_folder_of_jpeg_files(run, tmp_path, photographs):
    options = ("--epochs", "2", "--batch-size", "2", "--size", "32", "--log-every", "3")
    lines = run("train_images.py", str(photographs), *options, cwd=tmp_path)
    assert [line.split("  ")[:2] for line in lines] == [["epoch 0", "step 3"], ["epoch 1", "step 6"]]
    assert not list(tmp_path.iterdir())


def test_train_images_says_when_there_is_nothing_to_train_on(start, tmp_path):
    pytest.importorskip("PIL")
    done = start("train_images.py", str(tmp_path), cwd=tmp_path)
    assert done.returncode == 1
    assert "no .jpg files" in done.stderr


@pytest.mark.parametrize("model", ["mlp", "conv"])
def test_train_small_makes_the_steps_it_was_told_and_the_same_loss_each_time(run, tmp_path, model):
    options = ("--model", model, "--steps", "70", "--batch-size", "8", "--log-every", "35")
    first, second = (run("train_small.py", *options, cwd=tmp_path) for _ in range(2))
    assert [line.split("  ")[0] for line in first] == ["step 35", "step 70"]
    assert first == second


def test_infer_transformer_answers_every_step(run, tmp_path):
    lines = run("infer_transformer.py", "--steps", "5", "--device", "cpu", cwd=tmp_path)
    assert lines[-1].startswith("step 5  answer ")


def test_infer_large_matmul_takes_its_size_by_argument(run, tmp_path):
    lines = run("infer_large_matmul.py", "--size", "64", "--steps", "3", "--device", "cpu", cwd=tmp_path)
    assert lines[-1].startswith("step 3  mean ")


@pytest.mark.skipif(importlib.util.find_spec("ultralytics") is None, reason="ultralytics is not installed")
def test_yolo_then_transformer_runs_both(run, tmp_path, monkeypatch):
    for name, value in (
        ("YOLO_OFFLINE", "true"),
        ("YOLO_AUTOINSTALL", "false"),
        ("YOLO_CONFIG_DIR", str(tmp_path)),
    ):
        monkeypatch.setenv(name, value)
    lines = run("yolo_then_transformer.py", "--steps", "3", "--device", "cpu", cwd=tmp_path)
    assert lines[-1].startswith("step 3  answer ")


def test_every_example_has_a_test_and_those_that_are_tuned_know_nothing_of_dynotune():
    tests = Path(__file__).read_text(encoding="utf-8")
    for example in EXAMPLES.glob("*.py"):
        assert f'run("{example.name}"' in tests, f"{example.name} has no test"
        # Those that detect, and the one of cameras, are programs around the library.
        is_around = example.name.startswith("detect_") or example.name == "many_cameras.py"
        assert ("dynotune" in example.read_text(encoding="utf-8")) == is_around


def test_detect_video_finds_what_moves(run, tmp_path):
    options = ("--frames", "6", "--imgsz", "160", "--size", "160", "320", "--log-every", "6", "--batch", "2")
    lines = run("detect_video.py", *options, cwd=tmp_path)
    # The sixth square stands at 20, 20 and is 96 wide.
    assert lines[0].startswith("frame 6")
    x1, y1, x2, y2 = map(int, lines[0].split("[")[1].rstrip("]").split(","))
    assert x1 < 68 < x2 and y1 < 68 < y2
    assert lines[-1].startswith("6 frames")


def test_detect_many_serves_every_camera(run, tmp_path):
    options = ("--cameras", "3", "--frames", "5", "--fps", "200", "--imgsz", "160", "--size", "160", "320")
    lines = run("detect_many.py", *options, "--drop", "never", cwd=tmp_path)
    assert lines[:3] == [f"camera {number}  5 served, 0 dropped" for number in range(3)]
    assert lines[3].startswith("15 frames")


def test_many_cameras_go_on_when_one_stalls_one_ends_and_one_sends_garbage(run, tmp_path):
    options = ("--cameras", "4", "--stalls", "1", "--ends", "2", "--garbage", "3", "--stall-s", "0.5")
    sizes = ("--frames", "20", "--fps", "40", "--scale", "0.1", "--imgsz", "128", "--batch", "1", "4")
    lines = dict(line.split("  ", 1) for line in run("many_cameras.py", *options, *sizes, cwd=tmp_path))
    assert list(lines) == [f"camera {number}" for number in range(4)]
    for number, (num, what) in enumerate([(20, ""), (20, "1 stalls"), (5, "1 ended"), (20, "bad frames")]):
        served, dropped = (int(part.split()[0]) for part in lines[f"camera {number}"].split(", ")[:2])
        assert served + dropped == num
        assert what in lines[f"camera {number}"]
