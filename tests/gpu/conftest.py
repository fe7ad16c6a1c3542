"""Here every test needs a GPU; `child` is the one that the agent's own tests use."""

import importlib.util
from pathlib import Path

import pytest

_SOURCE = Path(__file__).parents[1] / "agent" / "apply" / "conftest.py"
_spec = importlib.util.spec_from_file_location("_apply_child", _SOURCE)
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
child = _module.fresh_child


@pytest.fixture(autouse=True)
def _needs_a_gpu():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU")
