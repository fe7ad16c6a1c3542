from __future__ import annotations

import pytest

from dynotune.trace.facts.source_files import is_of_library, is_users


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("train.py(31): step", True),
        ("src/model/net.py(5): forward", True),
        ("/home/me/trace.py(12): main", True),
        ("<ipython-input-3-0a1b>(5): train", True),
        ("/opt/venv/lib/python3.12/site-packages/einops/einops.py(12): rearrange", False),
        ("/usr/lib/python3/dist-packages/yaml/loader.py(3): load", False),
        ("/usr/lib/python3.12/threading.py(1032): _bootstrap", False),
        ("threading.py(1032): _bootstrap", False),
        ("multiprocessing/spawn.py(122): spawn_main", False),
        ("torch/nn/modules/module.py(1739): _wrapped_call_impl", False),
        ("transformers/models/qwen2/modeling_qwen2.py(243): forward", False),
        ("transformers_modules/mine/model.py(3): forward", True),
        ("torchtools.py(3): helper", True),
        ("<string>(1): <module>", False),
        ("<frozen importlib._bootstrap>(1349): _find_and_load", False),
        ("<built-in method to of Tensor object at 0x7d67180cc190>", False),
        ("nn.Module: Linear_3", False),
    ],
)
def test_a_function_is_the_users_unless_its_file_is_a_librarys(function: str, expected: bool):
    assert is_users(function) is expected


def test_our_agent_is_no_code_of_the_users():
    assert is_of_library("/home/me/checkout/src/dynotune/agent/steps/event_hooks.py")
    assert not is_of_library("/home/me/agent/steps/event_hooks.py")
