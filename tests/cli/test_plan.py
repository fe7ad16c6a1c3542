"""`dynotune plan tensorrt`: what it takes, what it prints, what it refuses."""

import json

import pytest

from dynotune import cli

from ..engines.models import save_linear

CALLS = [{"num": 3, "shapes": {"x": [1, 8]}}, {"num": 1, "shapes": {"x": [9, 8]}}]
SHAPES = {"schema": "dynotune.shapes/1", "calls": CALLS}


@pytest.fixture
def plan(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shapes.json").write_text(json.dumps(SHAPES))

    def run(*words):
        with pytest.raises(SystemExit) as ended:
            cli.main(["plan", "tensorrt", "--run-dir", "runs", *map(str, words)])
        out, err = capsys.readouterr()
        return ended.value.code, out, err

    return run


@pytest.mark.parametrize("source", ["shapes.json", "."])
def test_a_file_of_shapes_or_its_folder_gives_a_script_that_is_kept_too(plan, tmp_path, source):
    code, out, err = plan(source)
    assert code == 0
    assert out.startswith("#!/usr/bin/env bash\n")
    (kept,) = tmp_path.glob("runs/*/build.sh")
    assert kept.read_text() == out
    assert "2 profiles leave 0% of their largest shapes unused" in err
    assert str(kept.parent) in err.replace("\n", "")


def test_the_answer_as_json_takes_the_scripts_place_on_standard_output(plan):
    code, out, _ = plan("shapes.json", "--profiles", "1", "--json", "-")
    found = json.loads(out)
    assert code == 0
    assert found["schema"] == "dynotune.engine-plan/1"
    assert found["profiles"][0]["max"] == {"x": [9, 8]}


def test_a_model_with_shapes_for_it_is_planned_for_under_its_own_name(plan, tmp_path):
    pytest.importorskip("onnx")
    save_linear(tmp_path / "linear.onnx")
    code, out, err = plan("linear.onnx", "--shapes", "x:1x16", "--shapes", "x:9x16", "--profiles", "2")
    assert code == 0
    assert "model=linear.onnx" in out
    assert "--profile=1 --minShapes=x:1x16 --optShapes=x:9x16 --maxShapes=x:9x16" in out
    assert "2 profiles" in err


def test_a_model_of_fixed_sizes_is_built_without_shapes(plan, tmp_path):
    pytest.importorskip("onnx")
    save_linear(tmp_path / "linear.onnx", sizes=(4, 16))
    code, out, _ = plan("linear.onnx")
    assert code == 0
    assert "--minShapes" not in out


@pytest.mark.parametrize(
    "words",
    [[], ["shapes.json", "--", "python"], ["shapes.json", "--shapes", "x:1x8"], ["shapes.json", "--onnx"]],
)
def test_shapes_come_from_one_place(plan, words):
    code, out, err = plan(*words)
    assert (code, out) == (2, "")
    assert "Shapes come either from a command or from a file" in err
    assert "dynotune plan tensorrt -- python infer.py" in err


@pytest.mark.parametrize(
    "damage",
    [
        {"num": 0},
        {"num": -1},
        {"shapes": {"x": [-1, 8]}},
        {"shapes": {"x": [2**31, 8]}},
        {"shapes": {"x": "8"}},
    ],
)
def test_shapes_that_cannot_be_are_refused(plan, tmp_path, damage):
    (tmp_path / "bad.json").write_text(json.dumps({**SHAPES, "calls": [{**CALLS[0], **damage}]}))
    code, _, err = plan("bad.json")
    assert code == 3
    assert "bad.json is not a valid dynotune.shapes/1" in err


@pytest.mark.parametrize("option", ["--memory", "--precision"])
def test_a_file_that_is_not_there_is_said_before_the_command_runs(plan, tmp_path, option):
    code, _, err = plan(option, "missing.json", "--", "touch", "it-ran")
    assert code == 2
    assert "missing.json" in err
    assert not (tmp_path / "it-ran").exists()


def test_a_folder_without_shapes_is_said(plan, tmp_path):
    (tmp_path / "empty").mkdir()
    code, _, err = plan("empty")
    assert code == 3
    assert "empty/shapes.json" in err
