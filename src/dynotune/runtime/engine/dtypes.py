"""Choose the dtype for an engine with `dtype="auto"`: the fastest whose results on the user's inputs are no
worse.

An error is an output's distance from the same model's output in float64. `dynotune precision` has the same
rule.
"""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.utils import _pytree as pytree

from dynotune.runtime.engine.buckets import parse_buckets
from dynotune.runtime.engine.graphs import first_line
from dynotune.runtime.engine.numerics import ErrorMeasure, outputs_error
from dynotune.runtime.engine.prepare import Checked, Inputs, own_dtype
from dynotune.runtime.engine.stats import DtypeTried

NO_WORSE, NOTHING = 4.0, 2.0**-24
"""Errors up to this factor (two bits) times the model's own error are no worse; errors below NOTHING do not
count."""
WORTH = 1.02
NUM_ROUNDS, NUM_CALLS = 8, 5
REACH = 2.365 / math.sqrt(NUM_ROUNDS)
"""Half an interval at 95%, in standard deviations: Student's t of 7 degrees of freedom."""

Made = tuple[torch.nn.Module, torch.dtype]
QUANTIZED = {
    "int8": "Int8DynamicActivationInt8WeightConfig",
    "fp8": "Float8DynamicActivationFloat8WeightConfig",
}


def candidates(
    model: torch.nn.Module, own: torch.dtype, device: torch.device
) -> dict[str, Callable[[], Made]]:
    """Return the candidates besides the unchanged model; 8-bit types need torchao."""

    def quantized(config: str) -> Made:
        library, copied = import_module("torchao.quantization"), copy.deepcopy(model).eval()
        library.quantize_(
            copied, getattr(library, config)(), filter_fn=lambda layer, _: _suits(layer, device)
        )
        return copied, own

    halves = [one for one in (torch.bfloat16, torch.float16) if one != own]
    found: dict[str, Callable[[], Made]] = {name_of(one): partial(tuple, (model, one)) for one in halves}
    return found | {name: partial(quantized, config) for name, config in QUANTIZED.items()}


def _suits(layer: torch.nn.Module, device: torch.device) -> bool:
    """Tell whether torchao can multiply the layer's matrices in 8 bits; a GPU leaves odd sizes to the
    host."""
    if not isinstance(layer, torch.nn.Linear) or isinstance(layer, NonDynamicallyQuantizableLinear):
        return False
    return device.type == "cpu" or not any(size % 8 for size in layer.weight.shape)


def seconds(engine: Callable[..., Any], cases: Sequence[Inputs]) -> float:
    """Time calls of each case, including the device's work; warm-up calls do not count."""
    device = cases[0][0].device
    wait = partial(torch.cuda.synchronize, device) if device.type == "cuda" else lambda: None
    began = 0.0
    for num in (1, NUM_CALLS):
        wait()
        began = time.perf_counter()
        for inputs in [*cases] * num:
            engine(*inputs)
    wait()
    return time.perf_counter() - began


def choose(
    model: torch.nn.Module,
    shapes: Any,
    build: Callable[[torch.nn.Module, torch.dtype], Any],
    *,
    device: torch.device,
    tolerance: float | None,
    measure: ErrorMeasure,
    checked: Checked,
) -> tuple[Made, tuple[DtypeTried, ...]]:
    """Return the model and dtype to build with, and the results of all candidates.

    Args:
        build: builds an engine for a model in a dtype, without a tolerance.
        tolerance: accept errors up to this value, too; None accepts only errors that are no worse.
    """
    own = own_dtype(model)
    best, name = ((model, own), 1.0, 0), name_of(own)
    cases = [one.samples(device, seed) for one in parse_buckets(shapes, own) for seed in (0, 1)]

    def errors(call: Callable[..., Any], exact: Sequence[Any]) -> list[float]:
        with torch.no_grad():
            found = [checked(call(*(tensor.clone() for tensor in inputs))) for inputs in cases]
        return [outputs_error(want, got, measure) for want, got in zip(exact, found, strict=True)]

    try:
        double, wide = copy.deepcopy(model).to(device).eval().double(), torch.float64
        widened = [
            pytree.tree_map(lambda x: x.to(wide) if x.is_floating_point() else x, one) for one in cases
        ]
        with torch.no_grad():
            exact = [checked(double(*inputs)) for inputs in widened]
    except Exception as error:
        why = f"no float64 to judge others by: {type(error).__name__}: {first_line(error)}"
        return best[0], (DtypeTried(name, None, None, why, is_chosen=True),)
    with build(model, own) as plain:
        ours = errors(plain, exact)
        tried = [DtypeTried(name, max(ours), 1.0, "as the model is")]
        for name, make in candidates(model, own, device).items():
            most: float | None = None
            speedup: float | None = None
            try:
                made = make()
                with build(*made) as engine:
                    theirs = errors(engine, exact)
                    # Both may be infinite.
                    worse = max(
                        1.0 if a <= b else a / (b + NOTHING) for a, b in zip(theirs, ours, strict=True)
                    )
                    most = max(theirs)
                    if worse > NO_WORSE and not (tolerance is not None and most <= tolerance):
                        reason = f"worse: its errors are up to {worse:.3g} times the model's own"
                    else:
                        low, speedup = _faster(plain, engine, cases)
                        reason = f"no worse, and {speedup:.2f} times as fast, at least {low:.2f}"
                        if low > max(WORTH, best[1]):
                            best = (made, low, len(tried))
                        elif low <= WORTH:
                            reason += ": not proved to be faster"
            except Exception as error:
                reason = f"{type(error).__name__}: {first_line(error)}"
            tried.append(DtypeTried(name, most, speedup, reason))
    return best[0], tuple(replace(one, is_chosen=at == best[2]) for at, one in enumerate(tried))


def _faster(plain: Any, engine: Any, cases: Sequence[Inputs]) -> tuple[float, float]:
    """Return the proved and the likely speed-up, from calls of both models in turn."""
    logs = []
    for number in range(NUM_ROUNDS):
        sides = [plain, engine] if number % 2 else [engine, plain]
        taken = {side is engine: seconds(side, cases) for side in sides}
        logs.append(math.log(taken[False] / taken[True]))
    mean = statistics.fmean(logs)
    return math.exp(mean - REACH * statistics.stdev(logs)), math.exp(mean)


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
