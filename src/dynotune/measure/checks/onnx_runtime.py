"""Compare a model in ONNX Runtime with the exported module, relative to the module's own rounding noise."""

import importlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dynotune.measure.checks.noise import judge
from dynotune.schema import untrusted
from dynotune.schema.engine_plan import Batch, OnnxCheck
from dynotune.schema.facts import Unknown

PROVIDERS = ("CUDAExecutionProvider", "CPUExecutionProvider")
BEYOND_ALL = 1e30
"""The error that stands for outputs that are not finite."""
Array = npt.NDArray[Any]


def check_onnx(model: Path, batches: Sequence[Path]) -> OnnxCheck | Unknown:
    """Run the batches that the agent saved beside the model; write each tensor into a file that trtexec can
    load."""
    errors: list[float] = []
    own: list[float] = []
    kept: list[Batch] = []
    try:
        runtime = importlib.import_module("onnxruntime")
        providers = [one for one in PROVIDERS if one in runtime.get_available_providers()]
        session = runtime.InferenceSession(str(model), providers=providers)
        for path in batches:
            with untrusted.opened(path, link=False) as opened, np.load(opened, allow_pickle=False) as file:
                arrays: dict[str, Array] = dict(file)
            inputs = {one.name: arrays[f"input:{one.name}"] for one in session.get_inputs()}
            outputs = {one.name: arrays[f"reference:{at}"] for at, one in enumerate(session.get_outputs())}
            for at, (found, truth) in enumerate(
                zip(session.run(None, inputs), outputs.values(), strict=True)
            ):
                errors += _errors(found, truth)
                own += _errors(arrays[f"own:{at}"], truth)
            shapes = {name: list(one.shape) for name, one in inputs.items()}
            kept.append(Batch(shapes, _written(path, inputs), _written(path, outputs, arrays)))
    except Exception as failed:  # an error of the runtime or of a damaged file
        return Unknown(f"ONNX Runtime could not run it: {type(failed).__name__}: {str(failed)[:300]}")
    if not own or not all(map(math.isfinite, own)):
        return Unknown(f"the module's own outputs {'hold NaN or infinity' if own else 'are no tensors'}")
    judged = judge(np.nan_to_num(errors, nan=BEYOND_ALL, posinf=BEYOND_ALL).tolist(), own)
    assert judged is not None
    return OnnxCheck(session.get_providers()[0], judged.verdict, len(errors), judged.error, judged.own, kept)


def _written(batch: Path, tensors: dict[str, Array], own: dict[str, Array] | None = None) -> dict[str, str]:
    """Write each tensor to a file; convert outputs to the type of the module's own outputs."""
    files = {}
    for at, (name, tensor) in enumerate(tensors.items()):
        files[name] = f"{batch.with_suffix('')}-{'out' if own else 'in'}-{at}.bin"
        (tensor.astype(own[f"own:{at}"].dtype) if own else tensor).tofile(files[name])
    return files


def _errors(found: Array, reference: Array) -> list[float]:
    """Return errors per sample, relative to the sample's root mean square; for integers, the share that
    differs."""
    rows = len(reference) if reference.ndim else 1
    ours, truth = found.reshape(rows, -1), reference.reshape(rows, -1)
    if not np.issubdtype(reference.dtype, np.inexact):
        return list(map(float, (ours != truth).mean(axis=1)))
    size = np.linalg.norm(truth, axis=1)
    return list(map(float, np.linalg.norm(ours - truth, axis=1) / np.where(size > 0, size, 1.0)))
