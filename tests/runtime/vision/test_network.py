"""A detector and what comes behind it as one module: what of it is compiled."""

import pytest
import torch

from dynotune.runtime.vision import detector as vision

from ..yolo_like import EndToEnd, YoloLike, frames


class Watching:
    """A backend that compiles nothing, and keeps what it was given."""

    def __init__(self):
        self.operations = []

    def __call__(self, graph, inputs):
        self.operations += [str(getattr(node.target, "__name__", node.target)) for node in graph.graph.nodes]
        return graph.forward


def detector(model, **options):
    return vision.Detector(model, imgsz=64, max_frame=(96, 128), conf=0.5, batch=2, **options)


@pytest.mark.parametrize("model", [YoloLike, EndToEnd])
def test_the_network_is_compiled_and_what_makes_boxes_of_its_output_is_not(model):
    watching, many = Watching(), frames(3)
    with detector(model(), end_to_end=model is EndToEnd) as plain:
        want = plain.predict(many)
    with detector(model(), end_to_end=model is EndToEnd, compile={"backend": watching}) as ours:
        found = ours.predict(many)
        (engine,) = ours.stats().engines.values()
        assert [bucket.way for bucket in engine.buckets] == ["compiled"]
    assert "flatten" in watching.operations
    # Neither suppression, nor the widening and the view of bits before it.
    assert not {"sort", "cumsum", "scatter_", "float", "view"}.intersection(watching.operations)
    assert all(torch.equal(one.rows, other.rows) for one, other in zip(found, want, strict=True))
