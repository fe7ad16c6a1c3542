"""Here every test needs a GPU; `child` is the one that the agent's own tests use, always started anew."""

import pytest

from ..agent.sites.conftest import fresh_child

child = fresh_child


@pytest.fixture(autouse=True)
def _needs_a_gpu():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU")
