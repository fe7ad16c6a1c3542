from __future__ import annotations

from dynotune.probe import environment


def test_a_named_variable_that_is_not_set_is_none():
    assert environment.facts({})["env.OMP_NUM_THREADS"] is None


def test_a_variable_with_a_known_prefix_is_reported_with_its_value():
    facts = environment.facts({"NCCL_DEBUG": "TRACE", "OMP_NUM_THREADS": "4"})
    assert facts["env.NCCL_DEBUG"] == "TRACE"
    assert facts["env.OMP_NUM_THREADS"] == "4"


def test_other_variables_and_secrets_are_left_out():
    facts = environment.facts({"HOME": "/home/me", "HF_TOKEN": "x", "TORCH_HUB_TOKEN": "x", "YOLO_API_KEY": "x"})
    assert not {"env.HOME", "env.HF_TOKEN", "env.TORCH_HUB_TOKEN", "env.YOLO_API_KEY"} & facts.keys()


def test_every_variable_says_why_it_matters():
    assert all({**environment.NAMES, **environment.PREFIXES}.values())
