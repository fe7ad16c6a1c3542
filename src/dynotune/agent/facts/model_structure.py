"""Describe how a model is built: its wrapper, its parameters and its layers."""

from __future__ import annotations

from ..core.tensors import class_name, is_channels_last

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Iterable
    from typing import Any

_MOST_MODULES = 20_000
_WRAPPERS = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "FSDPModule")
# Attributes in which wrappers keep the wrapped module.
_INNER = {
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "OptimizedModule": "_orig_mod",
}


def structure(torch: Any, root: Any, updated: Container[int]) -> dict[str, Any]:
    """Return those fields of `schema.model.Model` that do not depend on calls.

    `updated`: identities of the parameters that optimizers have.
    """
    nn = torch.nn
    wrapper = _wrapper_among(base.__name__ for base in type(root).__mro__)
    inner = root
    while True:
        attribute = _INNER.get(type(inner).__name__, "")
        module = vars(inner).get("_modules", {}).get(attribute)
        if not isinstance(module, nn.Module):
            break
        inner = module
        wrapper = wrapper or _wrapper_among([type(inner).__name__])
    modules = [module for _, module in zip(range(_MOST_MODULES), root.modules())]
    fields: dict[str, Any] = {
        "name": class_name(inner),
        "training": bool(root.training),
        "wrapper": wrapper,
        "compiled": any(_is_compiled(module) for module in modules),
        **_parameters(torch, root),
        **_layers(nn, modules),
    }
    ddp = next((module for module in modules[:4] if type(module).__name__ == "DistributedDataParallel"), None)
    fields["ddp"] = _ddp(ddp) if ddp is not None else {}
    parameters = (parameter for _, parameter in zip(range(_MOST_MODULES), root.parameters()))
    fields["num_updated"] = sum(id(parameter) in updated for parameter in parameters)
    return fields


def _wrapper_among(names: Iterable[str]) -> str:
    """Return the first of the known wrappers that is among the names of classes; "" if none is."""
    present = set(names)
    return next((name for name in _WRAPPERS if name in present), "")


def _is_compiled(module: Any) -> bool:
    return type(module).__name__ == "OptimizedModule" or vars(module).get("_compiled_call_impl") is not None


def _parameters(torch: Any, root: Any) -> dict[str, Any]:
    num = num_bytes = num_tensors = ordered = channels_last = 0
    dtypes: dict[str, int] = {}
    devices: dict[str, int] = {}
    with torch._C.DisableTorchFunction():
        for _, parameter in zip(range(_MOST_MODULES), root.parameters()):
            if isinstance(parameter, torch.nn.parameter.UninitializedParameter):
                continue
            size = int(parameter.numel())
            num += size
            num_tensors += 1
            num_bytes += size * int(parameter.element_size())
            dtype, device = str(parameter.dtype).replace("torch.", ""), str(parameter.device)
            dtypes[dtype] = dtypes.get(dtype, 0) + size
            devices[device] = devices.get(device, 0) + size
            if parameter.dim() == 4 and parameter.layout == torch.strided:
                last = is_channels_last(torch, parameter)
                # The strides of 1 × 1 kernels fit both layouts, so they do not show the layout.
                if last or not parameter.is_contiguous(memory_format=torch.channels_last):
                    ordered, channels_last = ordered + size, channels_last + size * last
    return {
        "num_parameters": num,
        "parameter_bytes": num_bytes,
        "num_tensors": num_tensors,
        "dtypes": dtypes,
        "devices": devices,
        "channels_last_share": channels_last / ordered if ordered else None,
    }


def _layers(nn: Any, modules: list[Any]) -> dict[str, Any]:
    kinds = (
        ("convolution", (nn.modules.conv._ConvNd,)),
        ("linear", (nn.Linear, nn.Bilinear)),
        ("norm-batch", (nn.modules.batchnorm._BatchNorm,)),
        ("norm", (nn.LayerNorm, nn.GroupNorm, nn.modules.batchnorm._NormBase)),
        ("dropout", (nn.modules.dropout._DropoutNd,)),
        ("attention", (nn.MultiheadAttention,)),
        ("recurrent", (nn.RNNBase, nn.RNNCellBase)),
        ("embedding", (nn.Embedding, nn.EmbeddingBag)),
    )
    counts: dict[str, int] = {}
    num_training = 0
    for module in modules:
        name = type(module).__name__
        kind = next((kind for kind, classes in kinds if isinstance(module, classes)), None) or _by_name(name)
        if kind is not None:
            counts[kind] = counts.get(kind, 0) + 1
        if kind in ("dropout", "norm-batch") and module.training:
            num_training += 1
    tables = [found for module in modules if (found := _table(nn, module)) is not None]
    largest = max(tables, key=lambda table: int(table["num_bytes"]), default=None)
    return {"num_modules": counts, "num_training": num_training, "table": largest}


def _table(nn: Any, module: Any) -> dict[str, Any] | None:
    """Describe the weight table of an embedding layer that is trained."""
    weight = getattr(module, "weight", None)
    if not isinstance(module, (nn.Embedding, nn.EmbeddingBag)) or weight is None or not weight.requires_grad:
        return None
    num_bytes = int(weight.numel()) * int(weight.element_size())
    return {"num_rows": int(weight.shape[0]), "num_bytes": num_bytes, "sparse": bool(module.sparse)}


def _by_name(name: str) -> str | None:
    if name.endswith(("RMSNorm", "LayerNorm")):
        return "norm"
    return "attention" if name.endswith("Attention") else "linear" if name == "Conv1D" else None


def _ddp(ddp: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        name: bool(getattr(ddp, name, False))
        for name in ("find_unused_parameters", "static_graph", "gradient_as_bucket_view", "broadcast_buffers")
    }
    found["bucket_cap_mb"] = int(getattr(ddp, "bucket_bytes_cap", 0)) >> 20 or None
    try:
        logged = ddp._get_ddp_logging_data()
        # Sampled in the first ten steps and in every hundredth. Known only if the graph is searched for them.
        if found["find_unused_parameters"] and "unused_parameter_size" in logged:
            found["unused_parameters"] = int(logged["unused_parameter_size"])
        if found["find_unused_parameters"] and "can_set_static_graph" in logged:
            found["can_set_static_graph"] = bool(logged["can_set_static_graph"])
    except Exception:  # a version without this attribute
        pass
    return found
