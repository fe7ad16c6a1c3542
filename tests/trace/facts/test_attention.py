"""Attention written out by hand, by the order of its operators."""

from __future__ import annotations

import pytest

from dynotune.schema.trace_summary import WrittenAttention
from dynotune.trace.facts import attention

from ..made import Made

US = 1_000
PRODUCT = ("aten::matmul", "aten::bmm")
SOFTMAX = ("aten::softmax", "aten::_softmax")
DROPOUT = ("aten::dropout", "aten::bernoulli_")
NO_DROPOUT = ("aten::dropout",)


def written(*operators):
    """What is found among outermost operators in this order; each is a name and what it calls."""
    made = Made()
    for number, (name, *inner) in enumerate(operators):
        made.operator(name, number * US, number * US + 900)
        for called in inner:
            made.operator(called, number * US + 10, number * US + 800)
    return attention.written(made.timeline(), (0, len(operators) * US))


BY_HAND = (PRODUCT, ("aten::div",), ("aten::masked_fill",), SOFTMAX)


@pytest.mark.parametrize(
    ("operators", "num_whole", "num_dropped"),
    [
        ((*BY_HAND, PRODUCT), 1, 0),
        ((*BY_HAND, ("aten::to",), NO_DROPOUT, PRODUCT), 1, 0),
        ((*BY_HAND, DROPOUT, PRODUCT), 1, 1),
        ((("aten::einsum", "aten::bmm"), ("aten::mul",), SOFTMAX, ("aten::einsum", "aten::bmm")), 1, 0),
    ],
)
def test_attention_is_whole_when_only_scales_masks_and_a_dropout_lie_between(
    operators, num_whole, num_dropped
):
    assert written(*operators) == WrittenAttention(
        num_softmax=1, num_whole=num_whole, num_dropped=num_dropped
    )


@pytest.mark.parametrize(
    "operators",
    [
        # Scores that are a sum of two vectors behind a nonlinearity, as in graph attention.
        (PRODUCT, PRODUCT, ("aten::add",), ("aten::leaky_relu",), SOFTMAX, PRODUCT),
        # Weights that are normalised again, mixed between heads, or cut, before they are used.
        (*BY_HAND, ("aten::sum",), ("aten::div",), PRODUCT),
        (*BY_HAND, ("aten::topk",), PRODUCT),
        (("aten::matmul", "aten::mm"), ("aten::div",), SOFTMAX, PRODUCT),
        (SOFTMAX,),
        (*BY_HAND, ("aten::nll_loss",)),
    ],
)
def test_attention_is_not_whole_when_the_scores_or_the_weights_are_something_else(operators):
    assert written(*operators) == WrittenAttention(num_softmax=1, num_whole=0, num_dropped=0)


def test_softmax_of_torchs_own_attention_is_not_counted():
    found = written(("aten::scaled_dot_product_attention", "aten::_softmax", "aten::bmm"))
    assert found == WrittenAttention(num_softmax=0, num_whole=0, num_dropped=0)
