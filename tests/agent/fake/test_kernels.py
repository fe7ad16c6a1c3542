"""What kernels take for themselves."""

from types import SimpleNamespace

import pytest

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
    assert "aten::addmm" in kernels.MULTIPLIES
    assert "aten::add" not in kernels.MULTIPLIES


@pytest.mark.parametrize(
    ("setting", "capability", "version", "kib"),
    [
        ("", (9, 0), (2, 11), 32 << 10),
        ("", (8, 0), (2, 11), 8320),
        ("", (10, 0), (2, 11), 8320),
        ("", (12, 0), (2, 12), 32 << 10),
        (":4096:2:16:8", (9, 0), (2, 11), 8320),
        (":16:8", (9, 0), (2, 11), 128),
    ],
)
def test_the_workspace_of_cublas_is_as_large_as_torch_takes_it(setting, capability, version, kib):
    assert kernels.workspace_bytes(setting, capability, version) == kib << 10
