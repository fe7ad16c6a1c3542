"""What cuBLAS takes for itself."""

import pytest

from dynotune.agent.fake import kernels


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
