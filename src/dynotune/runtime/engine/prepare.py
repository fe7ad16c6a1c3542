"""Prepare the model that an engine runs from the user's model, and record the user's outputs for every
bucket."""

import copy
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.utils import _pytree as pytree

from dynotune.runtime.engine.buckets import Bucket, Padding
from dynotune.runtime.engine.forward_probe import Observation, observe
from dynotune.runtime.engine.graphs import first_line
from dynotune.runtime.engine.numerics import (
    ErrorMeasure,
    default_tolerance,
    first_nan,
    nonfinite_weights,
    outputs_error,
)
from dynotune.runtime.errors import InputError, NumericsError


class Folding:
    """Changes made by `fold`, which can be undone.

    `model`: the changed model. `names`: convolutions that absorbed a BatchNorm.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.names: list[str] = []
        self._model = model
        self._weights: list[tuple[_ConvNd, torch.nn.Parameter, torch.nn.Parameter | None]] = []
        self._norms: list[tuple[str, _BatchNorm]] = []

    def take(
        self,
        name: str,
        convolution: _ConvNd,
        norm: _BatchNorm,
        aliases: list[str],
        product: list[torch.Tensor],
    ) -> None:
        """Replace the weights of one convolution, and its BatchNorm under every name in the model."""
        self.names.append(name)
        self._weights.append((convolution, convolution.weight, convolution.bias))
        convolution.weight, convolution.bias = (
            torch.nn.Parameter(tensor, requires_grad=False) for tensor in product
        )
        for alias in aliases:
            self._norms.append((alias, norm))
            self._place(alias, torch.nn.Identity())

    def undo(self) -> None:
        for convolution, weight, bias in self._weights:
            convolution.weight, convolution.bias = weight, bias
        for alias, norm in self._norms:
            self._place(alias, norm)
        self.names, self._weights, self._norms = [], [], []

    def _place(self, name: str, module: torch.nn.Module) -> None:
        parent, _, child = name.rpartition(".")
        setattr(self._model.get_submodule(parent), child, module)


def fold(model: torch.nn.Module, pairs: Iterable[tuple[str, str]]) -> Folding:
    """Fold each BatchNorm of `pairs` into its convolution, in place.

    The product is computed in float64 and rounded once, to the convolution's dtype. A pair is skipped if its
    BatchNorm uses the batch's own statistics, or if the product does not fit the dtype.

    `model`: changed; in eval mode. `pairs`: names of a convolution and of the BatchNorm that alone reads its
        output.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    folding = Folding(model)
    for name, norm_name in pairs:
        convolution, norm = modules[name], modules[norm_name]
        assert isinstance(convolution, _ConvNd)
        assert isinstance(norm, _BatchNorm)
        if norm.training or norm.running_mean is None or norm.running_var is None:
            continue
        with torch.no_grad():
            product = _product(convolution, norm, norm.running_mean, norm.running_var)
        if all(bool(torch.isfinite(tensor).all()) for tensor in product):
            # A shared module stands under several names, and all of them must change.
            folding.take(
                name, convolution, norm, [alias for alias, m in modules.items() if m is norm], product
            )
    return folding


def _product(
    convolution: _ConvNd, norm: _BatchNorm, mean: torch.Tensor, variance: torch.Tensor
) -> list[torch.Tensor]:
    scale = torch.rsqrt(variance.double() + norm.eps)
    if norm.weight is not None:
        scale = scale * norm.weight.double()
    shift = -mean.double() * scale
    if convolution.bias is not None:
        shift = shift + convolution.bias.double() * scale
    if norm.bias is not None:
        shift = shift + norm.bias.double()
    weight = convolution.weight.double() * scale.view(-1, *[1] * (convolution.weight.dim() - 1))
    # empty_like keeps the layout, which may be channels_last.
    return [torch.empty_like(convolution.weight).copy_(weight), shift.to(convolution.weight.dtype)]


log = logging.getLogger("dynotune.runtime")

Inputs = tuple[torch.Tensor, ...]
Checked = Callable[[Any], Any]
"""A function of a model's outputs that returns the outputs to compare with the eager model's."""


@dataclass(slots=True)
class Expected:
    """Inputs and the eager model's outputs for them.

    `inputs`: on the device, in the model's own dtype. `outputs`: the outputs to compare, nested, on the host.
    """

    inputs: Inputs
    outputs: Any


@dataclass(slots=True)
class Prepared:
    """A model that is ready to run, with the outputs that it must reproduce.

    Args:
        model: in eval mode, on `device`, with dtype `dtype`; the user's own model if nothing had to change.
        tolerance: largest accepted error, as `measure` computes it.
        expected: inputs and outputs for each bucket that the eager model could run.
    """

    model: torch.nn.Module
    device: torch.device
    dtype: torch.dtype
    channels_last: bool
    tolerance: float
    measure: ErrorMeasure
    checked: Checked
    expected: dict[Bucket, list[Expected]] = field(default_factory=dict)
    left_out: dict[Bucket, str] = field(default_factory=dict)
    observation: Observation = field(default_factory=Observation)
    folded: list[str] = field(default_factory=list)


def check_arguments(model: Any, dtype: Any, tolerance: Any, time_every: Any) -> None:
    """Refuse arguments with which no engine can be built."""
    if not isinstance(model, torch.nn.Module):
        raise InputError(
            f"The model is a {type(model).__name__}, not a torch.nn.Module.",
            hint="Wrap a function in a small Module.",
        )
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise InputError(f"dtype={dtype!r} is not a floating dtype.", hint="Use torch.float16, say.")
    # NaN compares false, and so is refused too.
    if tolerance is not None and not (isinstance(tolerance, int | float) and tolerance >= 0):
        raise InputError(f"tolerance={tolerance!r} is not a number of 0 or more.")
    if not isinstance(time_every, int) or time_every < 1:
        raise InputError(f"time_every={time_every!r} is not an integer of 1 or more.")
    if torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu"):
        raise InputError(
            "An Engine was built under autocast, which a graph does not keep.", hint="Use dtype= instead."
        )


def own_dtype(model: torch.nn.Module) -> torch.dtype:
    """Return the dtype of the model's first floating-point parameter; torch's default dtype if there is
    none."""
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.get_default_dtype())


def device_of(model: torch.nn.Module) -> torch.device:
    """Return the model's device; the CPU if the model has neither parameters nor buffers.

    Raises InputError if the model is spread over several devices.
    """
    devices = {tensor.device for tensor in [*model.parameters(), *model.buffers()]}
    if len(devices) > 1:
        raise InputError(
            f"The model is spread over {sorted(map(str, devices))}.",
            hint="Put it on one device, or name device=.",
        )
    return devices.pop() if devices else torch.device("cpu")


def prepare(
    model: torch.nn.Module,
    buckets: list[Bucket],
    *,
    device: torch.device,
    dtype: torch.dtype,
    channels_last: bool,
    tolerance: float | None,
    measure: ErrorMeasure,
    checked: Checked,
    folds: bool,
    padding: Padding,
) -> Prepared:
    """Run the eager model on every bucket, then prepare the model that the engine runs.

    `model` is not changed: if anything must change, a copy is made.

    Raises:
        InputError: if the model cannot take a bucket's inputs, or cannot be copied.
        NumericsError: if the eager model itself gives NaN.
    """
    own = own_dtype(model)
    reference = model if _is_ready(model, device) else _copied(model).to(device).eval()
    limit = default_tolerance(dtype, device) if tolerance is None else tolerance
    prepared = Prepared(reference, device, dtype, channels_last, limit, measure, checked)
    for bucket in buckets:
        try:
            prepared.expected[bucket] = _expected(reference, bucket, device, own, padding, checked)
        except torch.cuda.OutOfMemoryError as error:
            prepared.left_out[bucket] = f"out of memory in the eager model: {first_line(error)}"
    if not prepared.expected:
        return prepared
    smallest = min(prepared.expected, key=lambda bucket: bucket.num_elements)
    check = prepared.expected[smallest][0]
    prepared.observation = observe(reference, tuple(tensor.clone() for tensor in check.inputs))
    pairs = prepared.observation.pairs if folds else []
    if not (pairs or channels_last or dtype != own):
        return prepared
    # A reference that is our own copy already may be changed.
    prepared.model = _copied(reference) if reference is model else reference
    if pairs:
        _fold(prepared, pairs, check.inputs, min(limit, default_tolerance(own, torch.device("cpu"))))
    prepared.model.to(dtype)
    if channels_last:
        prepared.model.to(memory_format=torch.channels_last)
    return prepared


def _is_ready(model: torch.nn.Module, device: torch.device) -> bool:
    tensors = [*model.parameters(), *model.buffers()]
    return all(tensor.device == device for tensor in tensors) and not any(m.training for m in model.modules())


def _copied(model: torch.nn.Module) -> torch.nn.Module:
    try:
        return copy.deepcopy(model)
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise InputError(
            f"The model has to be changed, and cannot be copied: {error}",
            hint="Give it ready: model.eval() on the device and in the dtype wanted, with fold=False.",
        ) from error


def _expected(
    model: torch.nn.Module,
    bucket: Bucket,
    device: torch.device,
    dtype: torch.dtype,
    padding: Padding,
    checked: Checked,
) -> list[Expected]:
    cases = [
        tuple(each.to(dtype) if each.is_floating_point() else each for each in bucket.samples(device, seed))
        for seed in (0, 1)
    ]
    if 0 in padding.fills and (bucket.batch or 0) > 1:
        cases.append(_without_last_row(cases[0]))
    expected = []
    for number, inputs in enumerate(cases):
        try:
            with torch.no_grad():
                outputs = checked(model(*(tensor.clone() for tensor in inputs)))
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:
            raise InputError(
                f"The model fails on the bucket {bucket}: {type(error).__name__}: {error}",
                hint="Name shapes that the model takes, or give example inputs where it takes integers.",
            ) from error
        nan = first_nan(outputs)
        if nan is None:
            # On the device the expectations of all buckets would take room that the graphs need.
            expected.append(
                Expected(
                    inputs, pytree.tree_map_only(torch.Tensor, lambda leaf: leaf.detach().cpu(), outputs)
                )
            )
        elif number != 1 or bucket.example is None:
            # An example in another order, case 1, may be no valid input: it may give NaN.
            _refuse_nan(model, bucket, nan)
    return expected


def _refuse_nan(model: torch.nn.Module, bucket: Bucket, output: int) -> None:
    names = nonfinite_weights(model)
    where = f"not finite: {', '.join(names)}" if names else "its weights are finite"
    raise NumericsError(
        f"The eager model gives NaN for the bucket {bucket}, in output {output}; {where}.",
        hint="Mend the weights." if names else "Give example inputs that the model is made for.",
    )


def _without_last_row(inputs: Inputs) -> Inputs:
    rows = inputs[0].shape[0]
    return tuple(tensor[:-1] if tensor.dim() and tensor.shape[0] == rows else tensor for tensor in inputs)


def _fold(prepared: Prepared, pairs: list[tuple[str, str]], inputs: Inputs, limit: float) -> None:
    """Fold BatchNorms, and undo the folding if the results are not exact enough.

    Both models run without TF32, which would change results more than folding does; deep networks amplify the
    changes.
    """
    with torch.no_grad(), _full_float32():
        unfolded = Expected(inputs, prepared.checked(prepared.model(*(tensor.clone() for tensor in inputs))))
        folding = fold(prepared.model, pairs)
        try:
            error = compare(unfolded, prepared, prepared.model(*(tensor.clone() for tensor in inputs)))
            why = f"the outputs would differ by {error:.2g}, more than {limit:.2g}" if error > limit else ""
        except AttributeError as missing:
            why = f"the model looks into it: {missing}"
    if why:
        log.warning("BatchNorm is not folded into convolutions: %s", why)
        folding.undo()
    prepared.folded = folding.names


@contextmanager
def _full_float32() -> Iterator[None]:
    """Turn off TF32 in convolutions, where torch enables it by default."""
    cudnn = torch.backends.cudnn
    # torch 2.9 added a name for each operation. The older one raises where they were set one by one.
    ops: list[Any] = [getattr(cudnn, name) for name in ("conv", "rnn") if hasattr(cudnn, name)]
    each = [op.fp32_precision for op in ops]
    try:
        together: bool | None = cudnn.allow_tf32
    except RuntimeError:
        together = None
    if together is not None:
        cudnn.allow_tf32 = False
    for op in ops:
        # The older name says only that nothing is asked here: what is asked for all of torch then counts.
        if together is None or op.fp32_precision == "tf32":
            op.fp32_precision = "ieee"
    try:
        yield
    finally:
        if together is not None:
            cudnn.allow_tf32 = together
        for op, value in zip(ops, each, strict=True):
            op.fp32_precision = value


def compare(expected: Expected, prepared: Prepared, outputs: Any) -> float:
    """Return the largest error of `outputs`, measured on their own device.

    Raises NumericsError if the outputs have another structure or other shapes.
    """
    found = prepared.checked(outputs)
    device = next((leaf.device for leaf in pytree.tree_leaves(found) if isinstance(leaf, torch.Tensor)), None)
    wanted = pytree.tree_map_only(torch.Tensor, lambda leaf: leaf.to(device), expected.outputs)
    return outputs_error(wanted, found, prepared.measure)
