"""Tell whether an IterableDataset gives each DataLoader worker its own share.

Torch copies the dataset into each worker. A dataset that does not ask for its worker's number yields all
samples in each worker. The test runs no code: it searches the code that iterating may reach for the name
`get_worker_info`.
"""

from __future__ import annotations

import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

# Data sets, by library and class, that shard by worker in code that is compiled, or too complex to be
# recognised by the search.
_SHARDING_CLASSES = {
    ("datasets", "IterableDataset"),
    ("litdata", "StreamingDataset"),
    ("streaming", "StreamingDataset"),
}
_MAX_FUNCTIONS = 500
_MAX_OBJECTS = 200


def shards_by_worker(dataset: Any, worker_init_fn: Any = None) -> bool:
    """Tell whether `dataset`, something inside it, or `worker_init_fn` asks for the worker's number."""
    objects = _reachable(dataset)
    if any(_is_known_to_shard(item) for item in objects):
        return True
    starts = [(type(item), getattr(type(item), "__iter__", None)) for item in objects]
    starts += [(type(item), item) for item in objects if isinstance(item, types.FunctionType)]
    if worker_init_fn is not None:
        function = getattr(worker_init_fn, "func", worker_init_fn)  # functools.partial
        starts.append((type(function), function))
        starts.append((type(function), getattr(type(function), "__call__", None)))
    return _mentions_worker_info(starts)


def _is_known_to_shard(item: Any) -> bool:
    classes = {(base.__module__.partition(".")[0], base.__name__) for base in type(item).__mro__}
    # torch's own datapipes get their share through `apply_sharding`.
    return bool(classes & _SHARDING_CLASSES) or callable(getattr(type(item), "apply_sharding", None))


def _reachable(dataset: Any) -> list[Any]:
    """List `dataset` and the objects in its attributes that may be datasets or functions that it uses."""
    found: list[Any] = []
    queue, seen = [dataset], set()
    while queue and len(found) < _MAX_OBJECTS:
        item = queue.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        found.append(item)
        for value in list(getattr(item, "__dict__", {}).values()):
            members = value if isinstance(value, (list, tuple)) and len(value) <= _MAX_OBJECTS else (value,)
            queue.extend(member for member in members if _may_yield_samples(member))
    return found


def _may_yield_samples(value: Any) -> bool:
    if isinstance(value, (types.FunctionType, types.MethodType)):
        return True
    return isinstance(getattr(type(value), "__iter__", None), types.FunctionType)


def _mentions_worker_info(starts: list[tuple[type, Any]]) -> bool:
    queue = list(starts)
    seen: set[tuple[type, types.FunctionType]] = set()
    while queue and len(seen) < _MAX_FUNCTIONS:
        owner, function = queue.pop()
        function = getattr(function, "__func__", function)
        while hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        if not isinstance(function, types.FunctionType) or (owner, function) in seen:
            continue
        seen.add((owner, function))
        names = _names(function.__code__)
        if "get_worker_info" in names:
            return True
        for value in _values_of(names, owner, function):
            if getattr(value, "__name__", "") == "get_worker_info":
                return True
            if isinstance(value, (types.FunctionType, types.MethodType, property)):
                queue.append((owner, getattr(value, "fget", value)))
    return False


def _names(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
    return names


def _values_of(names: set[str], owner: type, function: types.FunctionType) -> Iterator[Any]:
    """Yield the values of the names in a function's code: globals, methods, closures, and members of
    modules."""
    scope = function.__globals__
    for name in names:
        for value in (scope.get(name), getattr(owner, name, None)):
            yield value
            if isinstance(value, types.ModuleType) and not value.__name__.startswith("torch"):
                for member in names:
                    yield getattr(value, member, None)
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            continue  # not bound yet
