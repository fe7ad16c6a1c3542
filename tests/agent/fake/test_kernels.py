"""What kernels take for themselves."""

from types import SimpleNamespace

from dynotune.agent.fake import kernels


def tensor(*shape, element_size=2):
    size = 1
    for length in shape:
        size *= length
    return SimpleNamespace(shape=shape, numel=lambda: size, element_size=lambda: element_size)


def test_the_backward_of_flash_attention_adds_gradients_up_in_single_precision():
    query = tensor(8, 16, 1000, 64)
    found = kernels.temporary_bytes("aten::_scaled_dot_product_flash_attention_backward", [None, query])
    assert found == 4 * 8 * 16 * 1024 * 65


def test_most_operators_take_nothing():
    assert kernels.temporary_bytes("aten::relu", [tensor(4)]) == 0
    assert kernels.multiplies("aten::addmm") and not kernels.multiplies("aten::add")
