"""Rules on kernels and algorithms: each fires, is silent, and says what it lacks."""

from __future__ import annotations

import msgspec
import pytest

from dynotune.schema.facts import Unknown
from dynotune.schema.timing import SlowStep
from dynotune.schema.trace_summary import Called, Place, WrittenAttention

from .devices import AT, CALLED, found, kernels, lacks, lost, model, on_cpu, on_gpu, operator, settings, waits
from .observations import NOT_ASKED, observed, timing

CONVOLUTIONS = {"num_modules": {"convolution": 8, "norm-batch": 8}}
IN_CONVOLUTION = Place("train.py(31): step", "aten::conv2d")


def convolving(*losses, share=0.6, live=None, **fields):
    traced = {"kernels": [kernels(convolution=share, elementwise=1 - share)], **fields.pop("traced", {})}
    usual = {"models": [model(**CONVOLUTIONS)]}
    return on_gpu(*losses, traced=traced, live=live, **(usual | fields))


# What a faster device saves


@pytest.mark.parametrize(
    ("shares", "waited_s", "share"),
    [
        ({}, 0.0, 0.4),
        ({"host": 0.04}, 0.0, 0.4),  # within what ends of epochs cost
        ({"host": 0.5}, 0.0, None),  # the host sets the pace
        ({"input": 0.5}, 0.0, None),  # the loader does
        ({"host": 0.2}, 0.15, 0.15),  # the host waits for the device for 15 ms of 100
        ({"host": 0.2}, 5.0, 0.4),
    ],
)
def test_faster_kernels_save_no_more_than_the_host_waits_for_them(shares, waited_s, share):
    observation = on_gpu(lost("channels-last", 0.4), shares=shares, traced={"syncs": [waits(waited_s)]})
    finding = found(observation).get("channels-last")
    assert (finding and pytest.approx(finding.share)) == share


# Layout


def test_conversions_between_layouts_name_the_setting():
    finding = found(convolving(lost("channels-last", 0.3)))["channels-last"]
    assert (finding.share, finding.severity, finding.where) == (0.3, "high", AT)
    assert settings(finding) == ["layout.channels_last=true"]


def test_a_model_that_is_channels_last_already_is_not_told_to_become_it():
    finding = found(on_gpu(lost("channels-last", 0.3), models=[model(channels_last_share=1.0)]))[
        "channels-last"
    ]
    assert finding.candidates == []
    assert "inputs" in finding.remedy


def test_a_model_without_convolutions_of_two_dimensions_has_no_such_layout():
    speech = [model(channels_last_share=None)]
    assert "channels-last" not in found(on_gpu(lost("channels-last", 0.3), models=speech))


# Attention


def test_attention_by_its_plain_formula_counts_its_backward_pass_in_training():
    assert found(on_gpu(lost("sdpa-math", 0.1)))["sdpa-math"].share == pytest.approx(0.3)
    assert found(on_gpu(lost("sdpa-math", 0.1), optimizers=[]))["sdpa-math"].share == pytest.approx(0.1)


def test_fused_attention_that_is_switched_off_is_named():
    finding = found(on_gpu(lost("sdpa-math", 0.1), live={"live.sdp_flash": False}))["sdpa-math"]
    assert "flash attention is switched off" in finding.evidence
    assert "enable_flash_sdp" in finding.remedy


BY_HAND = [operator("aten::bmm", 40, 0.1), operator("aten::_softmax", 20, 0.1)]


def test_attention_by_hand_counts_more_than_its_softmax_and_no_more_than_such_work():
    traced = {"operators": BY_HAND, "kernels": [kernels(matmul=0.2, softmax=0.1, optimizer=0.7)]}
    assert found(on_gpu(lost("manual-attention", 0.05), traced=traced))[
        "manual-attention"
    ].share == pytest.approx(0.2)
    assert found(on_gpu(lost("manual-attention", 0.1), traced=traced))[
        "manual-attention"
    ].share == pytest.approx(0.3)


def test_a_little_attention_by_hand_beside_fused_attention_is_told_by_its_two_products_for_a_softmax():
    rare = [
        operator(
            "aten::bmm",
            60,
            0.01,
            callers={"program": Called(num=20, self_s=0.004), "backward": Called(num=40, self_s=0.006)},
        ),
        operator("aten::_softmax", 10, 0.01, callers={"program": Called(num=10, self_s=0.01)}),
    ]
    traced = {"operators": rare, "kernels": [kernels(matmul=0.5, softmax=0.02, elementwise=0.3)]}
    assert found(on_gpu(traced=traced))["manual-attention"].share == pytest.approx(0.08)
    router = [msgspec.structs.replace(rare[1], callers={"program": Called(num=11, self_s=0.001)}), rare[0]]
    assert "manual-attention" not in found(on_gpu(traced=traced | {"operators": router}))


def test_a_softmax_without_batched_products_is_no_attention():
    traced = {"operators": BY_HAND[1:], "kernels": [kernels(matmul=0.2, softmax=0.8)]}
    assert "manual-attention" not in found(on_gpu(lost("manual-attention", 0.8), traced=traced))


def test_attention_by_hand_on_the_cpu():
    operators = [*BY_HAND, operator("aten::addmm", 40, 0.8)]
    finding = found(on_cpu(traced={"operators": operators}))["manual-attention"]
    assert finding.share == pytest.approx(0.4)
    of_torch = operator("aten::_scaled_dot_product_attention_math", 20, 0.1)
    assert "manual-attention" not in found(on_cpu(traced={"operators": [*operators, of_torch]}))
    few = msgspec.structs.replace(of_torch, num=10)
    assert "manual-attention" in found(on_cpu(traced={"operators": [*operators, few]}))
    fused = [operator("aten::_scaled_dot_product_flash_attention_for_cpu", 20, 0.2), operators[-1]]
    assert "manual-attention" not in found(on_cpu(traced={"operators": fused}))


@pytest.mark.parametrize(
    ("num_whole", "num_dropped", "on", "share"),
    [
        (20, 0, on_cpu, 0.4),
        (10, 0, on_cpu, 0.2),
        (20, 20, on_cpu, None),
        (0, 0, on_cpu, None),
        (20, 20, on_gpu, 0.3),
    ],
)
def test_attention_by_hand_is_named_when_a_fused_kernel_can_replace_it(num_whole, num_dropped, on, share):
    attention = WrittenAttention(num_softmax=20, num_whole=num_whole, num_dropped=num_dropped)
    traced = {"operators": [*BY_HAND, operator("aten::addmm", 40, 0.8)], "attention": attention}
    losses = []
    if on is on_gpu:
        traced["kernels"] = [kernels(matmul=0.2, softmax=0.1, optimizer=0.7)]
        losses = [lost("manual-attention", 0.1)]
    finding = found(on(*losses, traced=traced)).get("manual-attention")
    assert (finding is None) if share is None else finding.share == pytest.approx(share)


# Sizes


def test_padding_is_advised_when_products_are_misaligned():
    finding = found(on_gpu(lost("gemm-misaligned", 0.4)))["gemm-misaligned"]
    assert finding.share == pytest.approx(0.3)
    assert "Pad" in finding.remedy


def test_convolutions_are_not_padded():
    assert "gemm-misaligned" not in found(on_gpu(lost("gemm-misaligned", 0.4, where=IN_CONVOLUTION)))


# Batch norm at inference

SERVING = {"training": False, "num_modules": CONVOLUTIONS["num_modules"]}


def test_batch_norm_that_could_be_part_of_its_convolution():
    traced = {"kernels": [kernels(convolution=0.7, normalisation=0.3)]}
    finding = found(on_gpu(traced=traced, models=[model(**SERVING)], optimizers=[]))["conv-bn-unfused"]
    assert (finding.share, finding.severity, finding.where) == (pytest.approx(0.3), "low", CALLED)


def test_batch_norm_on_the_cpu():
    traced = {"operators": [operator("aten::native_batch_norm", 80, 0.1), operator("aten::conv2d", 80, 0.9)]}
    finding = found(on_cpu(traced=traced, models=[model("cpu", **SERVING)], optimizers=[]))["conv-bn-unfused"]
    assert (finding.share, finding.severity) == (pytest.approx(0.1), "low")


@pytest.mark.parametrize(
    "fields", [{"training": True}, {"compiled": True}, {"num_modules": {"convolution": 8}}]
)
def test_batch_norm_that_has_to_stay(fields):
    traced = {"kernels": [kernels(convolution=0.7, normalisation=0.3)]}
    assert "conv-bn-unfused" not in found(
        on_gpu(traced=traced, models=[model(**(SERVING | fields))], optimizers=[])
    )


# Copies and queues


@pytest.mark.parametrize("id_", ["device-copies", "queue-stalled", "d2h-not-overlapped"])
def test_time_in_which_the_device_only_copies_or_stalls(id_):
    finding = found(on_gpu(lost(id_, 0.2)))[id_]
    assert (finding.share, finding.where) == (0.2, AT)
    assert id_ not in found(on_gpu(lost(id_, 0.005)))
    assert id_ not in found(on_cpu())


def test_copies_to_the_host_can_be_hidden_under_no_more_than_the_rest():
    assert found(on_gpu(lost("d2h-not-overlapped", 0.8)))["d2h-not-overlapped"].share == pytest.approx(0.2)


def test_a_queue_of_graphs_that_were_not_recorded_weighs_little():
    graphs = {"kernels": [kernels(in_graphs=5, matmul=1.0)]}
    assert found(on_gpu(lost("queue-stalled", 0.5), traced=graphs))["queue-stalled"].severity == "low"
    assert found(on_gpu(lost("queue-stalled", 0.5)))["queue-stalled"].severity == "medium"


# cuDNN


def test_convolutions_by_algorithms_that_were_not_timed():
    finding = found(convolving(live={"live.cudnn_benchmark": False}))["cudnn-benchmark-off"]
    assert (finding.share, finding.severity) == (pytest.approx(0.3), "medium")
    assert settings(finding) == ["cudnn.benchmark=true"]


def test_slow_kernels_show_that_the_guess_was_wrong():
    slow = lost("gemm-misaligned", 0.3, where=IN_CONVOLUTION)
    finding = found(convolving(slow, live={"live.cudnn_benchmark": False}))["cudnn-benchmark-off"]
    assert (finding.severity, finding.where) == ("high", IN_CONVOLUTION)


@pytest.mark.parametrize(
    "fields",
    [
        {"share": 0.1},
        {"models": [model(**CONVOLUTIONS, call={"num_input_shapes": 30})]},
        {"models": [model(num_modules={"linear": 8})]},
        {"live": {"live.cudnn_benchmark": True}},
    ],
)
def test_convolutions_that_need_no_timing(fields):
    assert "cudnn-benchmark-off" not in found(
        convolving(**({"live": {"live.cudnn_benchmark": False}} | fields))
    )


def test_deterministic_convolutions_stand_for_those_that_were_not_timed():
    finding = found(convolving(live={"live.cudnn_benchmark": False, "live.cudnn_deterministic": True}))
    assert finding["cudnn-deterministic-on"].also == ["cudnn-benchmark-off"]
    assert settings(finding["cudnn-deterministic-on"]) == [
        "cudnn.deterministic=false",
        "cudnn.benchmark=true",
    ]


def test_deterministic_convolutions_cost_nothing_at_inference():
    assert "cudnn-deterministic-on" not in found(
        convolving(live={"live.cudnn_deterministic": True}, optimizers=[])
    )


MANY_SHAPES = [model(**CONVOLUTIONS, call={"num_input_shapes": 40})]


def test_algorithms_that_are_timed_for_each_shape():
    # 1,000 kernels for 20 calls: 120 would do.
    calls = {"operators": [operator("aten::cudnn_convolution", 20, 0.1)]}
    finding = found(convolving(models=MANY_SHAPES, traced=calls))["cudnn-benchmark-dynamic"]
    assert finding.share == pytest.approx(0.88 * 0.6)
    assert settings(finding) == ["cudnn.benchmark=false"]


def test_a_host_that_waits_for_algorithms_to_be_timed_is_no_host_that_launches():
    calls = {"operators": [operator("aten::cudnn_convolution", 20, 0.1)]}
    observation = on_gpu(
        lost("launch-bound", 0.6), shares={"host": 0.6}, models=MANY_SHAPES,
        traced=calls | {"kernels": [kernels(convolution=0.6, matmul=0.4)]},
    )  # fmt: skip
    result = found(observation)
    assert result["cudnn-benchmark-dynamic"].also == ["launch-bound"]
    assert "launch-bound" not in result


def test_shapes_that_were_all_timed_already_cost_nothing():
    calls = {"operators": [operator("aten::cudnn_convolution", 400, 0.1)]}
    assert "cudnn-benchmark-dynamic" not in found(convolving(models=MANY_SHAPES, traced=calls))
    uneven = timing(step_s=0.1, median_step_s=0.06)
    finding = found(convolving(models=MANY_SHAPES, traced=calls, timed=uneven))["cudnn-benchmark-dynamic"]
    assert finding.share == pytest.approx(0.4)


def test_algorithms_that_are_timed_for_a_new_shape_now_and_then():
    slow = SlowStep(index=9, step_s=0.6, wait_s=0.0, causes=["allocation"])
    uneven = timing(step_s=0.1, median_step_s=0.01, slow=[slow], typical_step_s=0.1)

    def asked(num_shapes, timed):
        models = [model(**CONVOLUTIONS, call={"num_input_shapes": num_shapes})]
        return found(convolving(models=models, timed=timed, shares={"host": 0.1, "other": 0.2}))

    finding = asked(7, uneven)["cudnn-benchmark-dynamic"]
    assert finding.share == pytest.approx(0.1)
    assert finding.also == ["alloc-jitter"]
    # All have been seen; a last batch that is smaller is no new shape.
    assert "cudnn-benchmark-dynamic" not in asked(7, timing(step_s=0.1, median_step_s=0.01))
    assert "cudnn-benchmark-dynamic" not in asked(2, uneven)


def test_the_limit_of_algorithms_is_low():
    finding = found(convolving())["cudnn-benchmark-limit"]
    assert (finding.severity, type(finding.share)) == ("low", Unknown)
    assert "cudnn-benchmark-limit" not in found(convolving(live={"live.cudnn_benchmark_limit": 0}))


# Results that repeat

DETERMINISTIC = {"live.deterministic_algorithms": True}


def test_deterministic_algorithms_cost_where_there_are_others():
    traced = {"kernels": [kernels(index=0.3, sort=0.1, matmul=0.6)]}
    finding = found(on_gpu(traced=traced, live=DETERMINISTIC))["deterministic-algos-on"]
    assert finding.share == pytest.approx(0.4)
    assert settings(finding) == ["determinism.algorithms=false", "determinism.fill_memory=false"]
    assert found(on_gpu(live=DETERMINISTIC))["deterministic-algos-on"].severity == "low"
    assert "deterministic-algos-on" not in found(on_gpu(traced=traced))


def test_deterministic_algorithms_on_the_cpu():
    traced = {"operators": [operator("aten::index_add_", 10, 0.5), operator("aten::mm", 10, 0.5)]}
    assert found(on_cpu(traced=traced, live=DETERMINISTIC))["deterministic-algos-on"].share == pytest.approx(
        0.5
    )


def test_fills_of_new_memory():
    traced = {"operators": [operator("aten::fill_", 500, 0.5), operator("aten::mm", 500, 0.5)]}
    finding = found(on_cpu(traced=traced, live=DETERMINISTIC))["deterministic-algos-on"]
    assert (finding.share, finding.also) == (pytest.approx(0.5), ["fill-uninitialized"])
    traced["kernels"] = [kernels(elementwise=0.6, matmul=0.4)]
    finding = found(on_gpu(traced=traced, live=DETERMINISTIC))["deterministic-algos-on"]
    assert (finding.share, finding.also) == (pytest.approx(0.3), ["fill-uninitialized"])
    off = DETERMINISTIC | {"live.fill_uninitialized_memory": False}
    assert found(on_gpu(traced=traced, live=off))["deterministic-algos-on"].also == []


def test_a_softmax_of_which_only_the_backward_is_listed_is_attention_by_hand():
    by_hand = [operator("aten::bmm", 40, 0.3), operator("aten::_softmax_backward_data", 10, 0.1)]
    shares = [kernels(matmul=0.6, softmax=0.1, elementwise=0.3)]
    traced = {"operators": by_hand, "kernels": shares}
    assert found(on_gpu(lost("manual-attention", 0.1), traced=traced))[
        "manual-attention"
    ].share == pytest.approx(0.4)


# Unknown


@pytest.mark.parametrize(
    "id_",
    [
        "channels-last", "sdpa-math", "manual-attention", "gemm-misaligned", "device-copies", "queue-stalled",
        "d2h-not-overlapped", "cudnn-benchmark-off", "cudnn-deterministic-on", "cudnn-benchmark-limit",
    ],
)  # fmt: skip
def test_rules_on_kernels_are_unknown_without_a_trace(id_):
    assert lacks(observed(models=[model(**CONVOLUTIONS)], optimizers=on_gpu().processes[0].optimizers), id_)


def test_batch_norm_is_unknown_without_a_trace():
    assert lacks(observed(models=[model(**SERVING)]), "conv-bn-unfused") == ["where a step goes"]


@pytest.mark.parametrize(
    ("id_", "name"),
    [
        ("cudnn-benchmark-off", "live.cudnn_benchmark"),
        ("cudnn-benchmark-dynamic", "live.cudnn_benchmark"),
        ("cudnn-deterministic-on", "live.cudnn_deterministic"),
        ("deterministic-algos-on", "live.deterministic_algorithms"),
        ("fill-uninitialized", "live.deterministic_algorithms"),
    ],
)
def test_rules_on_algorithms_are_unknown_where_torch_does_not_say(id_, name):
    assert lacks(convolving(live={name: NOT_ASKED}), id_) == [name]
