"""Operations of a step, against what torch itself counts of the same calls."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile
from torch.utils import flop_counter

from dynotune.schema.errors import UsageError
from dynotune.schema.facts import Unknown
from dynotune.trace.facts import flops

from ..chrome import kernel, span, write

NUM_STEPS = 2


def counted(tmp_path, step, *, autocast=False):
    """What is reckoned from a trace of `step`, and what torch's own counter says of one."""
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        with flop_counter.FlopCounterMode(display=False) as counter:
            step()
        return reckoned(tmp_path, step), counter.get_total_flops()


def reckoned(tmp_path, step):
    path = tmp_path / "trace.json.gz"
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        step()  # before the steps: not of them
        for number in range(NUM_STEPS):
            with torch.autograd.profiler.record_function(f"ProfilerStep#{number}"):
                step()
        step()
    profiler.export_chrome_trace(str(path))
    return flops.work_of_step(path)


def convolutions():
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, (3, 5), stride=(2, 1), padding=(1, 0), dilation=(1, 2)),
        torch.nn.ReLU(),
        torch.nn.ConvTranspose2d(8, 6, 3, stride=2, padding=1, output_padding=1),
        torch.nn.BatchNorm2d(6),
        torch.nn.Conv2d(6, 4, 3, padding="same"),
        torch.nn.AdaptiveAvgPool2d(4),
        torch.nn.Flatten(),
        torch.nn.Linear(64, 10),
    )
    x = torch.randn(2, 3, 20, 22)
    return lambda: net(x).sum().backward()


def convolutions_in_other_dimensions():
    line, cube = torch.nn.Conv1d(4, 6, 3), torch.nn.Conv3d(2, 3, 3, stride=2, bias=False)
    x, y = torch.randn(2, 4, 30, requires_grad=True), torch.randn(2, 2, 9, 9, 9)

    def step():
        (line(x).sum() + cube(y).sum()).backward()

    return step


def transformer():
    net = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2)
    x = torch.randn(3, 8, 32)

    def step():
        with sdpa_kernel(SDPBackend.MATH):
            net(x).sum().backward()

    return step


def products():
    x, y, z = torch.randn(2, 8, 32), torch.randn(2, 32, 8), torch.randn(2, 8, 8)
    table, matrix = torch.nn.Parameter(torch.randn(32, 5)), torch.randn(7, 32)

    def step():
        torch.baddbmm(z, x, y)
        torch.einsum("bij,bjk->bik", x, y)
        torch.addmm(torch.zeros(5), matrix, table).sum().backward()
        (x @ table).sum().backward()

    return step


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("make", [convolutions, convolutions_in_other_dimensions, transformer, products])
def test_operations_are_those_that_torch_counts(make, autocast, tmp_path):
    found, expected = counted(tmp_path, make(), autocast=autocast)
    assert found.total == expected > 0
    types = {name for name, _ in found.flops}
    assert types <= {"float32", "bfloat16"}
    assert ("bfloat16" in types) == autocast


def test_inference_counts_half_the_products_of_a_linear_layers_training(tmp_path):
    net, x = torch.nn.Linear(16, 4), torch.randn(8, 16)
    with torch.no_grad():
        found, expected = counted(tmp_path, lambda: net(x))
    assert found.total == expected == 2 * 8 * 16 * 4
    assert found.num == 1
    assert found.num_bytes == 4 * (8 * 16 + 16 * 4 + 8 * 4 + 4)


def test_a_convolutions_bytes_are_those_of_its_operands_and_result(tmp_path):
    net, x = torch.nn.Conv2d(3, 8, 3, bias=False), torch.randn(2, 3, 10, 10)
    found, _ = counted(tmp_path, lambda: net(x).sum().backward())
    tensors = x.numel() + net.weight.numel() + 2 * 8 * 8 * 8
    # Forward once, and once for the gradient of the weights: none is asked of the input.
    assert found.num_bytes == 4 * 2 * tensors
    assert set(found.flops) == {("float32", True)}


def test_a_grouped_convolutions_backward_takes_twice_its_forward(tmp_path):
    net, x = torch.nn.Conv2d(8, 8, 3, groups=8), torch.randn(2, 8, 10, 10, requires_grad=True)
    found, of_torch = counted(tmp_path, lambda: net(x).sum().backward())
    forward = 2 * 2 * 8 * 9 * 8 * 8
    assert found.total == 3 * forward
    assert of_torch > found.total  # it counts the gradient of the weights for each pair of channels


def test_fused_attention_is_counted_by_torchs_formulas(tmp_path):
    query = torch.randn(2, 4, 8, 16, requires_grad=True)
    key, value = torch.randn(2, 4, 12, 16, requires_grad=True), torch.randn(2, 4, 12, 16, requires_grad=True)

    def step():
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            torch.nn.functional.scaled_dot_product_attention(query, key, value).sum().backward()

    found, _ = counted(tmp_path, step)
    shapes = query.shape, key.shape, value.shape
    forward = flop_counter.sdpa_flop_count(*shapes)
    assert found.total == forward + flop_counter.sdpa_backward_flop_count(query.shape, *shapes)


@pytest.mark.long
def test_a_compiled_step_counts_products_that_torch_itself_makes(tmp_path):
    net = torch.compile(torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4)))
    x = torch.randn(8, 16)
    net(x).sum().backward()
    found = reckoned(tmp_path, lambda: net(x).sum().backward())
    assert found.total >= 2 * 8 * (16 * 8 + 8 * 4)
    assert any("compiled" in note for note in found.notes)


# Traces made by hand

STEP = span("user_annotation", "ProfilerStep#3", 0, 100)


def product(ts=10, dur=5, *, name="aten::mm", dims=((2, 3), (3, 4)), types=("float", "float"), tid=1):
    inputs = {"Input Dims": [list(shape) for shape in dims], "Input type": list(types), "Concrete Inputs": ["", ""]}
    return span("cpu_op", name, ts, dur, tid=tid, **inputs)


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([product()], "no step is marked"),
        ([STEP], "no product, convolution or attention"),
        ([STEP, span("cpu_op", "aten::mm", 10, 5)], "shapes of 1 products are missing"),
        ([STEP, product(dims=((2, 3), (4, 4)))], "shapes of 1 products are missing"),
        ([STEP, product(types=("signed char", "signed char"))], "in signed char are not counted"),
        ([STEP, span("cuda_runtime", "cudaGraphLaunch", 10, 5)], "cudaGraphLaunch"),
        ([STEP, product(), kernel(20, 5, 1, name="triton_tem_fused_mm_0")], "triton_tem"),
        ([STEP, span("cpu_op", "Torch-Compiled Region: 0/0", 10, 5)], "compiled has no shapes"),
    ],
)
def test_what_cannot_be_counted_is_unknown_with_its_reason(events, reason, tmp_path):
    found = flops.work_of_step(write(tmp_path / "trace.json", events))
    assert isinstance(found, Unknown)
    assert reason in found.reason


def test_a_product_inside_of_another_and_one_outside_of_the_steps_are_left_out(tmp_path):
    inside, beside, before = product(11, 2), product(11, 2, tid=2), product(-20, 5)
    found = flops.work_of_step(write(tmp_path / "trace.json", [STEP, before, product(10, 5), inside, beside]))
    assert found.total == 2 * 2 * 2 * 3 * 4
    assert found.num == 2


def test_a_damaged_file_is_refused(tmp_path):
    (tmp_path / "trace.json").write_text('{"traceEvents": [{"name": 1')
    with pytest.raises(UsageError, match=r"trace\.json is no trace"):
        flops.work_of_step(tmp_path / "trace.json")


def test_numbers_in_a_trace_that_are_none_do_not_fail(tmp_path):
    odd = product() | {"args": {"Input Dims": "x", "Input type": 5, "Concrete Inputs": math.pi}}
    assert isinstance(flops.work_of_step(write(tmp_path / "trace.json", [STEP, odd])), Unknown)
