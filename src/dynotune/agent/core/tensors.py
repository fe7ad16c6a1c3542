"""Inspect tensors in batches and inputs: their types and shapes, never their values."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import FunctionType, MethodType, ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

MOST_TENSORS = 64
_MOST_VALUES = 512
_MOST_DEPTH = 6
_NO_CONTAINERS = (type, ModuleType, FunctionType, MethodType, str, bytes, int, float)


def class_name(thing: Any) -> str:
    """Return the name of the object's class, with the module."""
    return name_of(type(thing))


def name_of(thing: Any) -> str:
    """Return the name of a class or function, with its module; for other objects, the name of their class."""
    while isinstance(thing, functools.partial):
        thing = thing.func
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    # In a spawned worker, the program's main module has another name.
    module = getattr(named, "__module__", None) or type(named).__module__  # methods written in C have none
    return "%s.%s" % ("__main__" if module == "__mp_main__" else module, named.__qualname__)


def length_of(thing: Any) -> int | None:
    try:
        return len(thing)
    except Exception:  # it has no length, or its own code raises
        return None


def can_look(torch: Any) -> bool:
    """Tell whether tensors may be asked for their shapes; torch.compile, while tracing, would trace the
    question."""
    return torch._C._get_tracing_state() is None and not torch.compiler.is_compiling()


def described(torch: Any, value: Any) -> list[dict[str, Any]]:
    """Describe up to 64 tensors in `value`, with the fields of `schema.tensor.Tensor`."""
    # Otherwise torch would ask a subclass or mode of the program, which may count its calls.
    with torch._C.DisableTorchFunction():
        cuda = bool(torch.cuda.is_initialized())
        found = []
        for tensor in tensors_in(torch, value):
            fields = _describe(torch, tensor, cuda)
            if fields is not None:
                found.append(fields)
            if len(found) >= MOST_TENSORS:
                break
        return found


def tensors_in(torch: Any, value: Any) -> Iterator[Any]:
    """Yield tensors in lists, tuples, mappings and the attributes of other objects."""
    tensor = torch.Tensor
    stack, num = [(value, 0)], 0
    while stack and num < _MOST_VALUES:
        item, depth = stack.pop()
        num += 1
        if isinstance(item, tensor):
            yield item
        elif depth < _MOST_DEPTH:
            stack.extend((inner, depth + 1) for inner in reversed(_inside(item)))


def _inside(item: Any) -> list[Any]:
    try:
        if isinstance(item, (list, tuple)):
            return list(item[:_MOST_VALUES])
        if isinstance(item, Mapping):
            return list(item.values())[:_MOST_VALUES]
        if not isinstance(item, _NO_CONTAINERS):
            # A batch of its own class, as in torch_geometric.
            return list(getattr(item, "__dict__", {}).values())[:_MOST_VALUES]
    except Exception:  # the class's own code
        pass
    return []


def shapes(torch: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return quickly the shapes of tensors among the inputs of a call, and of tensors one level inside
    containers."""
    tensor, found = torch.Tensor, []
    for value in (*args, *kwargs.values()):
        if isinstance(value, tensor):
            found.append(tuple(value.shape))
        elif type(value) in (list, tuple):
            found.extend(tuple(item.shape) for item in value[:16] if isinstance(item, tensor))
        elif type(value) is dict:
            found.extend(tuple(item.shape) for item in list(value.values())[:16] if isinstance(item, tensor))
    return tuple(found)


def _describe(torch: Any, tensor: Any, cuda: bool) -> dict[str, Any] | None:
    try:
        shape = list(tensor.shape)
        if not all(type(size) is int for size in shape):
            return None  # a symbol, whose value would be fixed by asking for it
        on_host = tensor.device.type == "cpu"
        is_dense = tensor.layout == torch.strided
        return {
            "shape": shape,
            "dtype": str(tensor.dtype).replace("torch.", ""),
            "device": str(tensor.device),
            "num_bytes": int(tensor.numel()) * int(tensor.element_size()),
            # Without a context there is no pinned memory, and asking could create a context.
            "pinned": (cuda and bool(tensor.is_pinned())) if on_host and is_dense else None,
            "channels_last": is_channels_last(torch, tensor) if len(shape) == 4 and is_dense else None,
        }
    except Exception:  # a tensor of its own class
        return None


def is_channels_last(torch: Any, tensor: Any) -> bool:
    """Tell whether a tensor is channels-last; False if the tensor's strides fit both layouts, as with one
    channel."""
    return not tensor.is_contiguous() and bool(tensor.is_contiguous(memory_format=torch.channels_last))
