"""ONNX models say which shapes they take; hostile ones are refused before anything of them is used."""

from __future__ import annotations

import json
import os

import pytest

from dynotune.engines import onnx_model, plan_profiles, shapes_for
from dynotune.schema.errors import CannotRunHere, RecordError, UsageError

from .models import save_linear

onnx = pytest.importorskip("onnx")


@pytest.fixture
def model(tmp_path):
    def made(name="model.onnx", **fields):
        save_linear(tmp_path / name, **fields)
        return tmp_path / name

    return made


def shapes(histogram):
    return [call.shapes for call in histogram.calls]


def test_a_model_of_fixed_sizes_says_all_that_is_to_be_known(model):
    found, is_dynamic = shapes_for(model(sizes=(4, 16)), [])
    assert (shapes(found), found.dtypes, is_dynamic) == ([{"x": [4, 16]}], {"x": "float32"}, False)


def test_shapes_for_dimensions_that_vary_are_given(model, tmp_path):
    calls = [{"num": 7, "shapes": {"x": [2, 16]}}]
    (tmp_path / "shapes.json").write_text(json.dumps({"schema": "dynotune.shapes/1", "calls": calls}))
    found, is_dynamic = shapes_for(model(), ["x:1x16", str(tmp_path / "shapes.json"), "x:8x16"])
    assert shapes(found) == [{"x": [1, 16]}, {"x": [2, 16]}, {"x": [8, 16]}]
    assert [call.num for call in found.calls] == [1, 7, 1]
    assert is_dynamic


@pytest.mark.parametrize("size", [-1, 0])
def test_a_size_that_no_tensor_has_is_one_that_varies(model, size):
    path = model(sizes=(size, 16))
    with pytest.raises(UsageError, match="vary"):
        shapes_for(path, [])
    assert shapes(shapes_for(path, ["x:4x16"])[0]) == [{"x": [4, 16]}]


def test_without_shapes_the_error_says_how_to_give_them(model):
    with pytest.raises(UsageError, match="vary") as refused:
        shapes_for(model(), [])
    assert refused.value.hint == "For example: --shapes x:1x16"


@pytest.mark.parametrize(
    "given", ["x:1x15", "x:1x16x1", "y:1x16", "x:1x16,y:2", "x:-1x16", "x:9999999999x16", "1x16", "x:1xa"]
)
def test_shapes_that_the_model_does_not_take_are_refused(model, given):
    with pytest.raises(UsageError):
        shapes_for(model(), [given])


def outside(tmp_path):
    (tmp_path.parent / "outside.bin").write_bytes(bytes(1024))
    (tmp_path / "link.bin").symlink_to(tmp_path.parent / "outside.bin")


@pytest.mark.parametrize("location", ["../outside.bin", "/etc/passwd", "link.bin", "nowhere.bin"])
def test_weights_outside_of_the_models_folder_are_refused(model, tmp_path, location):
    outside(tmp_path)
    with pytest.raises(RecordError, match="no valid ONNX model"):
        shapes_for(model(sizes=(4, 16), external={"location": location}), [])


def test_weights_beside_the_model_are_not_read(model, tmp_path):
    with (tmp_path / "weights.bin").open("wb") as file:
        os.truncate(file.fileno(), 1 << 40)  # more than any memory holds
    found, _ = shapes_for(model(sizes=(4, 16), external={"location": "weights.bin"}), [])
    assert shapes(found) == [{"x": [4, 16]}]


@pytest.mark.parametrize(
    "damage", [lambda raw: raw[:-100], lambda raw: b"", lambda raw: b"PK\3\4" * 99, lambda raw: raw * 2]
)
def test_a_file_that_is_cut_short_or_is_no_model_is_refused(model, damage):
    path = model(sizes=(4, 16))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(RecordError, match="no valid ONNX model"):
        shapes_for(path, [])


def test_a_model_of_over_two_gigabytes_is_refused_without_reading_it(tmp_path):
    path = tmp_path / "large.onnx"
    with path.open("wb") as file:
        os.truncate(file.fileno(), 1 << 40)
    with pytest.raises(RecordError, match="over 2 GB") as refused:
        shapes_for(path, [])
    assert "weights" in refused.value.hint


@pytest.mark.parametrize("sizes", [(1 << 62, 16), (-3, 16)])
def test_sizes_that_cannot_be_are_refused(model, sizes):
    with pytest.raises(UsageError, match="no shapes that an engine takes"):
        shapes_for(model(sizes=sizes), [])


def test_a_shape_with_more_elements_than_any_engine_takes_is_refused(model):
    found, _ = shapes_for(model(sizes=("batch", "length"), num=1), ["x:900000000x900000000"])
    with pytest.raises(RecordError, match="larger than any"):
        plan_profiles(found)


def test_without_the_package_onnx_it_says_what_to_install(model, monkeypatch):
    path = model()
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(CannotRunHere, match="take the package onnx") as refused:
        onnx_model.declared_inputs(path)
    assert refused.value.hint == "pip install 'dynotune[onnx]'"
