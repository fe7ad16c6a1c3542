"""What settings would save: a recorded timeline run again, beside a program that was really changed so."""

from __future__ import annotations

import dataclasses

import pytest

from dynotune.trace.what_if import retimed
from dynotune.trace.what_if.settings import (
    CASTS,
    FUSED_OPTIMIZER_HOST,
    HALF_OF_FP32,
    TF32_OF_FP32,
    WAIT,
    Range,
    predictions,
)

from ...diagnose.simulated import MS, SYNC, US, kernels, load, python, recorded, timed
from ..made import Made

HALF = "sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x32_stage4_tensor16x8x16_kernel"
TF32, AUTOCAST = "matmul.fp32_precision=high", "precision.autocast=bf16"
PRODUCTS = {
    "the device sets the pace": [python(MS), *kernels(60, 20 * US, 200 * US)],
    "the host sets the pace": [python(MS), *kernels(60, 60 * US, 20 * US)],
    "the host, once they are faster": [python(MS), *kernels(60, 50 * US, 90 * US)],
    "in turns": [*kernels(40, 20 * US, 150 * US), SYNC, python(3 * MS)],
    "beside other work": [*kernels(40, 20 * US, 100 * US), *kernels(40, 10 * US, 100 * US, HALF)],
}
# In `make test`.
FIRST = ("the device sets the pace", "the host sets the pace")


def told(acts, slower=1.7):
    plain = timed(acts)
    timeline = recorded(acts, slower=slower)
    _, faster = retimed(timeline, plain.step_s, plain.wait_s)
    return predictions(timeline, plain.wait_s, faster)


def gain(acts, changed):
    return 1 - timed(changed).step_s / timed(acts).step_s


def holds(found, truth):
    return found.low - 0.03 <= truth <= found.high + 0.03


def inside(range_: Range):
    """Some factors of the range: its ends, and one between."""
    return (range_.most, (range_.most * range_.least) ** 0.5 or range_.least / 2, range_.least)


@pytest.mark.parametrize("slower", [1.7, 2.5])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FIRST else pytest.mark.long) for name in PRODUCTS]
)
@pytest.mark.parametrize(("setting", "range_"), [(TF32, TF32_OF_FP32), (AUTOCAST, HALF_OF_FP32)])
def test_faster_products_save_what_the_host_leaves_of_it(setting, range_, name, slower):
    acts = PRODUCTS[name]
    found = told(acts, slower)[setting]
    launched = [act for act in acts if act.kind == "launch"]
    products = [act for act in launched if act.name == "ampere_sgemm"]
    for factor, casts in zip(
        inside(range_), inside(CASTS if setting == AUTOCAST else Range(0.0, 0.0)), strict=True
    ):
        of_host = 1 + casts * len(products) / len(launched)
        changed = [
            dataclasses.replace(
                act,
                host=round(act.host * (of_host if act.kind == "launch" else 1)),
                device=round(act.device * (factor if act.name == "ampere_sgemm" else 1)),
            )
            for act in acts
        ]
        assert holds(found, gain(acts, changed)), (factor, found, gain(acts, changed))


@pytest.mark.long
def test_a_loader_that_keeps_up_saves_its_wait():
    acts = [load(6 * MS), *kernels(100, 40 * US, 50 * US)]
    found = told(acts)["loader.num_workers"]
    for factor in inside(WAIT):
        changed = [
            dataclasses.replace(act, host=round(act.host * factor)) if act.kind == "load" else act
            for act in acts
        ]
        assert holds(found, gain(acts, changed))


def test_predictions_leave_out_what_compiling_saves():
    assert not [setting for setting in told(PRODUCTS["in turns"]) if setting.startswith("compile")]


def test_predictions_leave_out_settings_that_change_nothing_of_the_timeline():
    found = told([python(MS), *kernels(50, 20 * US, 60 * US, HALF)])
    assert (
        not {TF32, AUTOCAST, "optimizer.fused=true", "loader.num_workers", "layout.channels_last=true"}
        & found.keys()
    )
    assert predictions(Made().timeline(), None, 1.0) == {}


def test_a_fused_optimizer_spares_the_host_most_of_its_time_in_the_update():
    made = Made()
    for number in range(8):
        at = number * 10 * MS
        made.annotation(f"ProfilerStep#{number}", at, at + 10 * MS)
        made.annotation("Optimizer.step#AdamW.step", at + 6 * MS, at + 10 * MS)
        for index, launched in enumerate((1 * MS, 7 * MS, 9 * MS)):
            made.launch(
                "cudaLaunchKernel", at + launched, at + launched + 10 * US, correlation=10 * number + index
            )
            made.kernel(
                "k", at + launched + 15 * US, at + launched + 25 * US, correlation=10 * number + index
            )
    found = predictions(made.timeline(), None, 1.0)["optimizer.fused=true"]
    assert found.low == pytest.approx(0.4 * (1 - FUSED_OPTIMIZER_HOST.least), abs=0.03)
    assert found.high == pytest.approx(0.4 * (1 - FUSED_OPTIMIZER_HOST.most), abs=0.03)
