"""A model in ONNX Runtime is judged by the module's own errors against float64."""

from __future__ import annotations

import numpy as np
import pytest

from dynotune.measure.checks import check_onnx
from dynotune.schema.facts import Unknown

from ...engines.models import save_linear

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


@pytest.fixture
def checked(tmp_path):
    def run(*, error=0.0, own=None, sizes=(3, 5), damage=()):
        save_linear(tmp_path / "model.onnx", error=error)
        draw = np.random.default_rng(0)
        weights = draw.standard_normal((16, 16)).astype(np.float32)
        paths = []
        for number, size in enumerate(sizes):
            x = draw.standard_normal((size, 16)).astype(np.float32)
            reference = x.astype(np.float64) @ weights.astype(np.float64)
            arrays = {
                "input:x": x,
                "own:0": x @ weights if own is None else np.full_like(x, own),
                "reference:0": reference,
            }
            paths.append(tmp_path / f"onnx-{number}.npz")
            np.savez(paths[-1], **{name: array for name, array in arrays.items() if name not in damage})
        return check_onnx(tmp_path / "model.onnx", paths)

    return run


def test_rounding_is_no_worse_and_batches_are_written_as_trtexec_loads_them(checked):
    found = checked()
    assert (found.verdict, found.num_values) == ("no worse", 8)
    assert found.error < 1e-6
    assert [batch.shapes for batch in found.batches] == [{"x": [3, 16]}, {"x": [5, 16]}]
    assert np.fromfile(found.batches[1].inputs["x"], np.float32).size == 5 * 16
    assert (
        np.fromfile(found.batches[1].outputs["y"], np.float32).size == 5 * 16
    )  # as the engine's, not in float64


@pytest.mark.parametrize("error", [1e-4, 0.01])
def test_weights_that_are_off_are_worse_though_their_outputs_are_finite(checked, error):
    assert checked(error=error).verdict == "worse"


def test_outputs_that_are_not_finite_are_worse(checked):
    assert checked(error=np.inf).verdict == "worse"


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_module_with_nan_of_its_own_is_no_measure(checked, value):
    assert checked(own=value) == Unknown("the module's own outputs hold NaN or infinity")


@pytest.mark.parametrize("missing", ["input:x", "own:0", "reference:0"])
def test_damaged_batches_are_unknown_and_no_answer(checked, missing):
    found = checked(damage=[missing])
    assert isinstance(found, Unknown)
    assert missing in found.reason


def test_a_file_that_is_no_model_is_unknown(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"PK\3\4")
    assert "could not run it" in check_onnx(tmp_path / "model.onnx", []).reason
