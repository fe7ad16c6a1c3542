"""Compute digests of results: a few numbers, kept on the device until they are read, that show changes of
results."""

from __future__ import annotations

from collections.abc import Mapping

from ..core.device import autocast_inside_forward

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    # Shape of a tensor, and the numbers that stand for its values.
    Digest = tuple[list[int], Any]

NUM_SAMPLED = 64
"""Number of elements sampled from each tensor, evenly spaced."""
MOST_TENSORS, MOST_DEPTH = 8, 6


def digests_of(torch: Any, output: Any) -> list[Digest]:
    """Digest the first tensors in an output: for each tensor its shape and, on the device in float64, sum,
    sum of magnitudes, root of the sum of squares, and sampled elements (None for an empty tensor).
    """
    with torch.no_grad(), plainly(torch):
        return [_digest(torch, tensor) for _, tensor in zip(range(MOST_TENSORS), _tensors(torch, output, 0))]


def _tensors(torch: Any, value: Any, depth: int) -> Iterator[Any]:
    """Yield the floating-point tensors that the value contains, in order."""
    if isinstance(value, torch.Tensor):
        tensor = local(value)
        if is_plain(torch, tensor):
            yield torch.view_as_real(tensor) if tensor.is_complex() else tensor
        return
    if depth >= MOST_DEPTH:
        return
    parts: list[Any] = []
    if isinstance(value, Mapping):
        parts = list(value.values())
    elif isinstance(value, (list, tuple)):
        parts = list(value)
    elif hasattr(type(value), "__dataclass_fields__"):
        parts = [getattr(value, name, None) for name in type(value).__dataclass_fields__]
    for part in parts:
        yield from _tensors(torch, part, depth + 1)


def _digest(torch: Any, tensor: Any) -> Digest:
    num, double = tensor.numel(), torch.float64
    if not num:
        return list(tensor.shape), None
    # Do not copy the tensor, which may be as large as the free memory.
    norm = torch.linalg.vector_norm
    moments = [torch.sum(tensor, dtype=double), norm(tensor, 1, dtype=double), norm(tensor, 2, dtype=double)]
    places = torch.arange(min(num, NUM_SAMPLED), device=tensor.device, dtype=torch.int64)
    if num > NUM_SAMPLED:
        places = places * (num - 1) // (NUM_SAMPLED - 1)
    sampled = torch.take(tensor, places).to(double)
    return list(tensor.shape), torch.cat([torch.stack(moments), sampled])


def local(tensor: Any) -> Any:
    """Return the local part of a tensor that is distributed over ranks; reading all parts would be a
    collective."""
    return getattr(tensor, "_local_tensor", tensor).detach()


def is_plain(torch: Any, tensor: Any) -> bool:
    """Tell whether the tensor has readable numbers of 16 bits or more."""
    kinds = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)
    if tensor.dtype not in kinds or tensor.is_meta or tensor.is_nested or tensor.layout is not torch.strided:
        return False
    wrapped = getattr(getattr(torch._C, "_functorch", None), "is_functorch_wrapped_tensor", None)
    return type(tensor).__name__ != "FakeTensor" and not (wrapped is not None and wrapped(tensor))


def plainly(torch: Any) -> Any:
    """Treat tensors as plain tensors in this block, so that tensor subclasses run no code of their own."""
    return torch._C.DisableTorchFunctionSubclass()


def random_states(torch: Any) -> dict[str, Any]:
    """Return the states of the random number generators, by kind of device."""
    generators = {"cpu": [torch.default_generator]}
    if torch.cuda.is_initialized():
        generators["cuda"] = list(torch.cuda.default_generators)
    return {kind: [bytes(one.get_state().numpy()) for one in found] for kind, found in generators.items()}


def precision_of(torch: Any, module: Any) -> str:
    """Return the lowest precision of a module's calls, as far as the precision is visible from outside."""
    halves = {torch.bfloat16: "bfloat16", torch.float16: "float16"}
    parameter = next((p for p in module.parameters() if p.is_floating_point()), None)
    device = "cpu" if parameter is None else parameter.device.type
    if parameter is not None and parameter.dtype in halves:
        return halves[parameter.dtype]
    if torch.is_autocast_enabled(device):
        return halves.get(torch.get_autocast_dtype(device), "")
    inside = autocast_inside_forward(torch, module)
    if inside is not None:
        return inside
    if device != "cuda":
        return "float32"
    # cuDNN's switch is on by default, and has no effect on a module without convolutions.
    cudnn_takes = any(p.dim() > 2 for p in module.parameters()) or any(
        isinstance(part, torch.nn.RNNBase) for part in module.modules()
    )
    may = torch.get_float32_matmul_precision() != "highest" or (
        torch.backends.cudnn.allow_tf32 and cudnn_takes
    )
    return "tf32" if may else "float32"


def fields_of(call: list[Digest]) -> list[dict[str, Any]]:
    fields: list[dict[str, Any]] = []
    for shape, found in call:
        total, magnitudes, root, *sampled = [0.0] * 3 if found is None else map(number, found.tolist())
        fields.append(
            {"shape": shape, "sum": total, "magnitudes": magnitudes, "root": root, "sampled": sampled}
        )
    return fields


def number(value: float) -> float | None:
    """Return the number; None if the number is not finite, because JSON has no such numbers."""
    return value if -1e308 < value < 1e308 else None
