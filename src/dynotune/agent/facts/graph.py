"""Count the nodes of autograd's graph that Python's tensors keep alive."""

from __future__ import annotations

from ..core.living_objects import living_objects

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST_OBJECTS = 5_000_000
MOST_NODES = 100_000
"""Limit of counting; beyond it, either count takes some tenths of a second."""


def graphs(torch: Any, before: int | None) -> dict[str, int | None]:
    """Return fields of `schema.observation.ProcessState`.

    `before`: number of graph nodes at the window's begin. Between two steps a training loop keeps the graph
    of its last loss; a loop that stores losses keeps all graphs.
    """
    after = None if before is None or before >= MOST_NODES else num_nodes(torch)
    return {
        "graph_nodes_growth": None if before is None or after is None else after - before,
        "graph_nodes": after,
    }


def num_nodes(torch: Any) -> int | None:
    """Count the graph nodes behind Python's tensors, at most MOST_NODES; None if Python has too many objects.

    The result is 0 if `torch` is None, because a program without torch has no tensors.
    """
    if torch is None:
        return 0
    objects = living_objects()
    if len(objects) > MOST_OBJECTS:
        return None
    is_tensor: dict[type, bool] = {}
    ahead: list[Any] = []
    # A subclass of the program may run any code when asked.
    with torch._C.DisableTorchFunction():
        for one in objects:
            kind = type(one)
            if kind not in is_tensor:
                is_tensor[kind] = issubclass(kind, torch.Tensor)
            if is_tensor[kind] and one.grad_fn is not None:
                ahead.append(one.grad_fn)
    del objects
    # Keep them alive while counting, because the identity of a dead object may be reused.
    seen: dict[int, Any] = {}
    while ahead and len(seen) < MOST_NODES:
        node = ahead.pop()
        if id(node) not in seen:
            seen[id(node)] = node
            ahead.extend(following for following, _ in node.next_functions if following is not None)
    return len(seen)
