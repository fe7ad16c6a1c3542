"""Find softmax operators that belong to attention written out by hand, and tell which a fused kernel could
replace."""

import re

import numpy as np
from numpy.typing import NDArray

from dynotune.schema.trace_summary import WrittenAttention
from dynotune.trace.facts import call_order
from dynotune.trace.facts.call_order import Sequence
from dynotune.trace.timeline import HostKind, Ints, Timeline, told_by_name, touching

MOST_BETWEEN = 40
"""Most outermost operators between a softmax and the products of its attention, views and masks included."""

_VIEWS = (
    "view|reshape|_unsafe_view|transpose|permute|swapaxes|contiguous|clone|to|_to_copy|float|half|bfloat16|type_as|"
    "unsqueeze|squeeze|expand|expand_as|slice|select|narrow|chunk|split|unbind|unflatten|flatten|alias|detach|"
    "movedim|size|empty|empty_like|copy_|linear|cat"
)
_SCALES_OR_MASKS = (
    "div|mul|add|sub|neg|sqrt|rsqrt|pow|reciprocal|masked_fill|where|eq|ne|lt|le|gt|ge|logical_not|logical_and|"
    "bitwise_not|tril|triu|ones|zeros|full|ones_like|zeros_like|full_like|fill|zero|arange|scalar_tensor|lift_fresh|"
    "finfo|repeat|repeat_interleave|index|gather"
)
_SOFTMAX = re.compile(r"aten::_?softmax$")
_OF_SCORES = re.compile(rf"aten::({_VIEWS}|{_SCALES_OR_MASKS})_?$")
_OF_WEIGHTS = re.compile(rf"aten::({_VIEWS}|dropout|feature_dropout|native_dropout)_?$")
_DROPOUT = re.compile(r"aten::(dropout|feature_dropout|native_dropout)_?$")
_BATCHED = re.compile(r"aten::(bmm|baddbmm)$")
_DRAWS = re.compile(r"aten::(bernoulli_?|native_dropout|rand_like|uniform_)$")


def written(timeline: Timeline, window: tuple[int, int]) -> WrittenAttention:
    """Return how many softmax operators of the forward pass there are, and how many have attention around
    them.

    Attention is a batched product whose scores are only scaled and masked, a softmax, at most a dropout, and
    another batched product. A fused kernel computes no other scores, and gives nobody the weights.
    """
    host = timeline.host
    rows = np.flatnonzero((host.kind == HostKind.OPERATOR) & touching(host, window))
    softmax = rows[told_by_name(timeline.names, host.name[rows], _SOFTMAX.match)]
    num = num_whole = num_dropped = 0
    for thread in np.unique(host.thread[softmax]).tolist():
        sequence = call_order.of_thread(timeline, thread)
        found = _Order(timeline, sequence)
        for at in np.flatnonzero(found.is_softmax & touching(host, window)[sequence.rows]).tolist():
            num += 1
            before = found.product_beside(at, -1, found.of_scores)
            after = found.product_beside(at, +1, found.of_weights)
            if before is not None and after is not None:
                num_whole += 1
                num_dropped += bool(found.drops[at : after + 1].any())
    return WrittenAttention(num_softmax=num, num_whole=num_whole, num_dropped=num_dropped)


class _Order:
    """The outermost operators of one thread in order, each with what it may be of attention."""

    def __init__(self, timeline: Timeline, sequence: Sequence) -> None:
        def match(pattern: re.Pattern[str]) -> NDArray[np.bool_]:
            return told_by_name(timeline.names, timeline.host.name[sequence.rows], pattern.match)

        self.is_softmax = match(_SOFTMAX)
        self.of_scores, self.of_weights = match(_OF_SCORES), match(_OF_WEIGHTS)
        self._multiplies = self._holds(timeline, sequence, _BATCHED)
        self.drops = match(_DROPOUT) & self._holds(timeline, sequence, _DRAWS)

    @staticmethod
    def _holds(timeline: Timeline, sequence: Sequence, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
        """Tell of each operator whether it is such an operator, or calls one."""
        host = timeline.host
        inner: Ints = np.flatnonzero(
            (host.kind == HostKind.OPERATOR) & told_by_name(timeline.names, host.name, pattern.match)
        )
        return call_order.num_inside(timeline, sequence.rows, inner) > 0

    def product_beside(self, at: int, direction: int, passes: NDArray[np.bool_]) -> int | None:
        """Return the nearest batched product in the direction, if only operators in `passes` lie between."""
        for other in range(at + direction, at + direction * (MOST_BETWEEN + 1), direction):
            if not 0 <= other < len(self._multiplies):
                return None
            if self._multiplies[other]:
                return other
            if not passes[other]:
                return None
        return None
