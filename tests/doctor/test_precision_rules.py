"""Rules on types: each fires, is silent, and says what it lacks."""

from __future__ import annotations

from typing import Any

import pytest

from dynotune.schema.facts import Unknown
from dynotune.schema.trace_summary import Place

from .devices import AT, CALLED, LIVE, found, kernels, lacks, lost, model, on_cpu, on_gpu, optimizer, settings
from .observations import NOT_ASKED, observed

TF32 = {"live.matmul_fp32_precision": "tf32"}
BF16: dict[str, Any] = {"live.autocast_dtypes": ["bfloat16"]}
FP16: dict[str, Any] = {"live.autocast_dtypes": ["float16"]}
SERVING: dict[str, Any] = {"models": [model(training=False)], "optimizers": []}


def products(share: float) -> dict[str, Any]:
    return {"kernels": [kernels(matmul=share, optimizer=1 - share)]}


# TF32


def test_products_without_tensor_cores_cost_what_their_rate_says():
    finding = found(on_gpu(lost("fp32-matmul-no-tf32", 0.5), traced=products(0.5)))["fp32-matmul-no-tf32"]
    assert (finding.share, finding.severity, finding.where) == (
        pytest.approx(0.5 * (1 - 1 / 7.4)),
        "high",
        AT,
    )
    assert "changes results" in finding.claim
    assert settings(finding) == ["matmul.fp32_precision=high", "precision.autocast=bf16"]
    assert finding.also == ["amp-absent"]


def test_a_device_that_gains_less_from_tf32_is_told_less():
    ada = {"live.compute_capability": "8.9"}
    finding = found(on_gpu(lost("fp32-matmul-no-tf32", 0.5), traced=products(0.5), live=ada))[
        "fp32-matmul-no-tf32"
    ]
    assert finding.share == pytest.approx(0.25)


def test_precision_finding_counts_bfloat16_when_it_gives_more_beyond_tf32():
    traced = {"kernels": [kernels(matmul=0.1, convolution=0.9)]}
    finding = found(on_gpu(lost("fp32-matmul-no-tf32", 0.1), traced=traced))["fp32-matmul-no-tf32"]
    assert finding.share == pytest.approx(0.9 * 0.5 + 0.1 * (1 / 7.4 - 1 / 14.8))


def test_a_program_that_waits_for_its_host_gains_nothing_from_tf32():
    assert found(on_gpu(lost("fp32-matmul-no-tf32", 0.3), shares={"host": 0.6}, traced=products(0.9))) == {}


@pytest.mark.parametrize(
    ("place", "live", "facts"),
    [
        (AT, TF32, {}),
        (AT, {}, {"env.NVIDIA_TF32_OVERRIDE": "0"}),
        (Place("", "aten::scaled_dot_product_attention"), {}, {}),
    ],
)
def test_products_that_tf32_is_not_the_answer_for(place, live, facts):
    observation = on_gpu(lost("fp32-matmul-no-tf32", 0.5, where=place), live=live, facts=facts)
    assert "fp32-matmul-no-tf32" not in found(observation)


# Autocast


def test_float32_that_uses_tf32_gains_from_bfloat16():
    finding = found(on_gpu(traced=products(0.6), live=TF32))["amp-absent"]
    assert (finding.share, finding.where) == (pytest.approx(0.3), CALLED)
    assert settings(finding) == ["precision.autocast=bf16"]
    assert "changes results" in finding.claim


def test_pointwise_kernels_read_and_write_half_as_much():
    traced = {"kernels": [kernels(matmul=0.6, elementwise=0.4)]}
    assert found(on_gpu(traced=traced, live=TF32))["amp-absent"].share == pytest.approx(0.3 + 0.2)


def test_convolutions_without_tensor_cores_gain_most():
    traced = {"kernels": [kernels(convolution=0.6, optimizer=0.4)]}
    finding = found(on_gpu(lost("amp-absent", 0.6), traced=traced, live=TF32))["amp-absent"]
    assert finding.share == pytest.approx(0.6 * (1 - 1 / 14.8))


@pytest.mark.parametrize(
    "fields",
    [
        {"live": TF32 | BF16},
        {"models": [model(call={"autocast": "bfloat16"})]},
        {"models": [model(dtypes={"torch.bfloat16": 1000})]},
        {"live": TF32 | {"live.compute_capability": "7.5"}},
        {"shares": {"host": 0.6}},
    ],
)
def test_programs_that_autocast_has_nothing_to_give(fields):
    assert "amp-absent" not in found(on_gpu(**({"traced": products(0.6), "live": TF32} | fields)))
    assert "amp-absent" not in found(on_cpu())


def test_a_model_that_serves_in_float32_stands_for_the_missing_autocast():
    finding = found(on_gpu(traced=products(0.6), live=TF32, **SERVING))["inference-fp32-weights"]
    assert (finding.share, finding.also) == (pytest.approx(0.3), ["amp-absent"])
    assert "inference-fp32-weights" not in found(on_gpu(traced=products(0.6), live=TF32))


def test_autocast_that_converts_the_weights_at_each_call():
    serving = {"models": [model(training=False, call={"autocast": "bfloat16"})], "optimizers": []}
    finding = found(on_gpu(lost("casts", 0.2), live=BF16, **serving))["inference-fp32-weights"]
    assert (finding.share, finding.candidates) == (0.2, [])


# Scaling


def test_training_in_float16_without_a_scaler_is_a_fault_of_correctness():
    for program in (on_gpu, on_cpu):
        finding = found(program(live=FP16))["amp-fp16-no-scaler"]
        assert (finding.kind, finding.severity, type(finding.share)) == ("correctness", "high", Unknown)


@pytest.mark.parametrize(
    "fields", [{"live": FP16 | {"live.grad_scaler": True}}, {"live": BF16}, {"optimizers": []}]
)
def test_float16_that_needs_no_scaler(fields):
    assert "amp-fp16-no-scaler" not in found(on_gpu(**({"live": FP16} | fields)))


def test_a_scaler_for_bfloat16():
    scaled = BF16 | {"live.grad_scaler": True}
    item = lost("sync-per-step", 0.1, where=Place("train.py(31): step", "aten::item"))
    stepped = optimizer(scaled=True, place=CALLED)
    observation = on_gpu(item, live=scaled, traced=products(0.9), optimizers=[stepped])
    finding = found(observation)["scaler-with-bf16"]
    assert (finding.share, finding.where) == (pytest.approx(0.05 + 0.1), CALLED)
    assert "scaler-with-bf16" not in found(on_gpu(live=FP16 | {"live.grad_scaler": True}))
    assert "scaler-with-bf16" not in found(on_gpu(live=BF16))


# Half types


def test_a_model_in_a_half_type_under_autocast():
    half = {"dtypes": {"float16": 1000}}
    trained = found(on_gpu(models=[model(call={"autocast": "float16"}, **half)]))["model-half-under-autocast"]
    assert (trained.kind, trained.severity) == ("correctness", "medium")
    served = on_gpu(models=[model(training=False, call={"autocast": "float16"}, **half)], optimizers=[])
    assert found(served)["model-half-under-autocast"].severity == "low"
    assert "model-half-under-autocast" not in found(on_gpu(models=[model(**half)]))
    assert "model-half-under-autocast" not in found(on_gpu(models=[model(call={"autocast": "float16"})]))


def test_conversions_weigh_only_beyond_what_autocast_costs():
    assert found(on_gpu(lost("casts", 0.07), live=BF16))["casts"].severity == "low"
    assert found(on_gpu(lost("casts", 0.2), live=BF16))["casts"].severity == "low"
    assert found(on_gpu(lost("casts", 0.2)))["casts"].severity == "medium"
    assert "casts" not in found(on_gpu(lost("casts", 0.005)))


# Unknown


def test_rules_on_types_are_unknown_without_a_trace():
    serving = observed(models=[model(training=False)], live=LIVE)
    for id_ in ("fp32-matmul-no-tf32", "casts", "amp-absent", "inference-fp32-weights"):
        assert lacks(serving, id_) == ["where a step goes"]


def test_rules_on_types_say_what_torch_did_not_tell():
    losing = lost("fp32-matmul-no-tf32", 0.5)
    asked = {"live.matmul_fp32_precision": NOT_ASKED}
    assert lacks(on_gpu(losing, live=asked), "fp32-matmul-no-tf32") == ["live.matmul_fp32_precision"]
    assert lacks(on_gpu(models=[]), "amp-absent") == ["the model's types"]
    untold: Any = FP16 | {"live.grad_scaler": NOT_ASKED}
    assert lacks(on_gpu(live=untold), "amp-fp16-no-scaler") == ["live.grad_scaler"]
    assert lacks(on_gpu(live=untold), "scaler-with-bf16") == ["live.grad_scaler"]
    assert lacks(on_gpu(models=[], live={"live.autocast_dtypes": NOT_ASKED}), "amp-fp16-no-scaler") == [
        "live.autocast_dtypes"
    ]
