"""Rules on engines: calls that newer versions of TensorRT no longer have."""

from __future__ import annotations

import pytest

from dynotune.doctor.rules.code import REMOVED_CALLS
from dynotune.schema.facts import Unknown
from dynotune.schema.trace_summary import Place

from .devices import found, lacks, on_gpu
from .observations import observed

CALLS = REMOVED_CALLS.call


def of_names(*names, version=None):
    named = [f"infer.py:{at} {name}" for at, name in enumerate(names, 10)]
    facts = {} if version is None else {"package.tensorrt": version}
    return observed(live={"live.tensorrt_names": named}, facts=facts)


def test_a_call_that_the_installed_version_no_longer_has_is_said_with_its_line_and_what_replaces_it():
    finding = found(of_names("trt.Logger", "config.max_workspace_size", version="11.1.0.106"))[
        "trt-removed-api"
    ]
    assert (finding.severity, finding.kind, type(finding.share)) == ("high", "correctness", Unknown)
    assert finding.claim == "config.max_workspace_size is gone from TensorRT 10.0 on."
    assert finding.where == Place("infer.py:11")
    assert "set_memory_pool_limit" in finding.remedy
    assert finding.evidence == ["infer.py:11 config.max_workspace_size", "TensorRT installed: 11.1.0.106"]


@pytest.mark.parametrize("version", ["10.16.0", None])
def test_a_call_that_the_installed_version_still_has_is_said_before_it_goes(version):
    finding = found(of_names("BuilderFlag.FP16", "BuilderFlag.INT8", version=version))["trt-removed-api"]
    assert finding.severity == "medium"
    assert "from TensorRT 11.0 on" in finding.claim
    assert finding.evidence[:2] == ["infer.py:10 BuilderFlag.FP16", "infer.py:11 BuilderFlag.INT8"]


@pytest.mark.parametrize(
    "name",
    [
        "context.execute_async_v3",
        "torch.FP16",
        "DataType.INT8",
        "my_max_workspace_size",
        "dataset.max_batch_size",
    ],
)
def test_removed_api_finding_is_silent_when_a_name_is_still_there_or_only_looks_alike(name):
    assert "trt-removed-api" not in found(of_names(name, version="11.1.0"))


def test_a_program_that_could_not_be_read_is_not_judged():
    observation = observed(live={"live.tensorrt_names": Unknown("infer.py was edited")})
    assert lacks(observation, "trt-removed-api") == ["live.tensorrt_names"]


def test_a_program_without_tensorrt_is_not_asked():
    assert lacks(on_gpu(), "trt-removed-api") == []
    assert "trt-removed-api" not in found(on_gpu())


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.names[0])
def test_each_entry_says_since_when_and_what_instead_and_none_is_named_by_another(call):
    assert call.gone_from in ("10.0", "10.1", "11.0")
    assert call.instead and call.was_in_cpp
    others = [name for other in CALLS if other is not call for name in other.names]
    assert not any(f".{one}".endswith(f".{other}") for one in call.names for other in others)
