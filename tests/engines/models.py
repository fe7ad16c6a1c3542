"""ONNX models for tests, good and bad."""

from __future__ import annotations

import numpy as np


def save_linear(path, *, sizes=("batch", 16), error=0.0, num=16, external=None):
    """`y = x W`, with each weight off by a share of `error`; `external`: fields of weights that lie beside
    it."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    draw = np.random.default_rng(0)
    values = draw.standard_normal((num, num)) * (1 + error * draw.choice([-1, 1], (num, num)))
    weights = numpy_helper.from_array(values.astype(np.float32), "w")
    if external is not None:
        weights.ClearField("raw_data")
        weights.data_location = TensorProto.EXTERNAL
        for key, value in external.items():
            weights.external_data.add(key=key, value=str(value))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, sizes)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [sizes[0], num])
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "linear", [x], [y], [weights])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    path.write_bytes(made.SerializeToString())
    assert onnx
