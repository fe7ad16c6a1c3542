"""Find autocast regions that begin inside a module's `forward`, from a decorator or from accelerate."""

from __future__ import annotations

from .annotations import Any

_MOST_FUNCTIONS = 12


def inside_forward(torch: Any, module: Any) -> str | None:
    """Return the number type of the autocast region around `forward`, or None, without calling any function."""
    kind = torch.amp.autocast_mode.autocast
    queue = [vars(module).get("forward") or type(module).forward]
    for number in range(_MOST_FUNCTIONS):
        if number >= len(queue):
            return None
        function = getattr(queue[number], "__func__", queue[number])
        for value in _held_by(function):
            if isinstance(value, kind):
                dtype = getattr(value, "fast_dtype", None)
                if getattr(value, "_enabled", False) and dtype is not None:
                    return str(dtype).replace("torch.", "")
            elif callable(value) and not isinstance(value, type) and value not in queue:
                queue.append(value)
    return None


def _held_by(function: Any) -> list[Any]:
    """List the values that a wrapper refers to: the closure of a function, or the attributes of a wrapper object."""
    held = [getattr(function, "__wrapped__", None)]
    for cell in getattr(function, "__closure__", None) or ():
        try:
            held.append(cell.cell_contents)
        except ValueError:  # not bound yet
            continue
    code = getattr(function, "__code__", None)
    if code is None and not hasattr(function, "parameters"):
        held.extend(getattr(function, "__dict__", {}).values())
    return [value for value in held if value is not None]
