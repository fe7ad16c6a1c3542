"""How much of autograd's graph the program's tensors hold on to, at the window's two ends."""

from __future__ import annotations

import gc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST_OBJECTS = 5_000_000
MOST_NODES = 100_000
"""Beyond these it is not counted on: either takes some tenths of a second."""


class Graphs:
    """Between two steps a training holds on to the graph of its last loss; one that keeps losses, to all of them."""

    def __init__(self) -> None:
        self._torch: Any = None
        self._before: int | None = None

    def torch_is_here(self, torch: Any) -> None:
        self._torch = torch

    def begin(self) -> None:
        self._before = num_nodes(self._torch)

    def facts(self) -> dict[str, Any]:
        """Fields of `schema.observation.ProcessState`."""
        if self._before is None or self._before >= MOST_NODES:
            return {"graph_nodes_growth": None}
        after = num_nodes(self._torch)
        return {"graph_nodes_growth": None if after is None else after - self._before}


def num_nodes(torch: Any) -> int | None:
    """Nodes behind the tensors that Python holds, at most MOST_NODES; None where there are too many objects.

    Without torch (None) there are no tensors.
    """
    if torch is None:
        return 0
    objects = gc.get_objects()
    if len(objects) > MOST_OBJECTS:
        return None
    is_tensor: dict[type, bool] = {}
    ahead: list[Any] = []
    # A subclass of the program's own may do anything where it is asked.
    with torch._C.DisableTorchFunction():
        for one in objects:
            kind = type(one)
            if kind not in is_tensor:
                is_tensor[kind] = issubclass(kind, torch.Tensor)
            if is_tensor[kind] and one.grad_fn is not None:
                ahead.append(one.grad_fn)
    del objects
    # Kept while they are counted: the identity of one that is gone may be another's.
    seen: dict[int, Any] = {}
    while ahead and len(seen) < MOST_NODES:
        node = ahead.pop()
        if id(node) not in seen:
            seen[id(node)] = node
            ahead.extend(following for following, _ in node.next_functions if following is not None)
    return len(seen)
