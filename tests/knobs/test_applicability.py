"""Settings that can or cannot work on a machine."""

import pytest

from dynotune import knobs
from dynotune.schema.errors import CannotRunHere
from dynotune.schema.facts import Unknown
from dynotune.schema.setting import Setting

NO_GPU = {"gpu.count": 0, "host.num_cores": 2, "torch.version": "2.13.0+cpu", "torch.cuda": None}

GPU = {
    "gpu.count": 1,
    "gpu.compute_capability": "9.0",
    "gpu.name": "NVIDIA H200",
    "host.num_cores": 2,
    "torch.version": "2.11.0+cu130",
    "torch.cuda": "13.0",
    "platform": "Linux",
}


def test_every_knob_applies_on_a_recent_gpu_machine():
    for knob in knobs.all_knobs():
        knobs.check_applies(Setting(knob.id, True), GPU)


@pytest.mark.parametrize(
    ("text", "facts", "missing"),
    [
        ("loader.pin_memory=true", NO_GPU | {"torch.cuda": "13.0"}, "none was found"),
        ("transfer.non_blocking=true", NO_GPU | {"torch.cuda": "13.0"}, "none was found"),
        ("alloc.expandable_segments=true", GPU | {"torch.cuda": None}, "built without CUDA"),
        ("matmul.fp32_precision=high", GPU | {"gpu.compute_capability": "7.5"}, "8.0"),
        ("loader.in_order=false", GPU | {"torch.version": "2.5.1"}, "2.6"),
        ("host.malloc=jemalloc", GPU | {"platform": "Darwin"}, "Linux"),
    ],
)
def test_a_setting_that_cannot_work_here_is_refused_with_what_is_missing(text, facts, missing):
    with pytest.raises(CannotRunHere, match=missing):
        knobs.check_applies(knobs.parse(text), facts)


@pytest.mark.parametrize("version", ["2.6.0", "2.10.0+cu130", "2.15.0"])
def test_versions_are_compared_as_numbers(version):
    knobs.check_applies(knobs.parse("loader.in_order=false"), {"torch.version": version})
    knobs.check_applies(knobs.parse("matmul.fp32_precision=high"), {"gpu.compute_capability": "12.0"})


@pytest.mark.parametrize("knob", knobs.all_knobs(), ids=lambda knob: knob.id)
def test_applicability_leaves_a_setting_to_the_readback_when_facts_are_unknown(knob):
    knobs.check_applies(Setting(knob.id, True), {})
    knobs.check_applies(Setting(knob.id, True), dict.fromkeys(knob.needs, Unknown("no driver")))


def test_a_value_that_needs_a_package_is_refused_where_it_is_known_to_be_missing():
    python = {"python.version": "3.12.1"}
    opencv = knobs.parse("decode.backend=opencv")
    for facts in (
        {},
        {"python.version": Unknown("no answer")},
        python | {"package.opencv-python-headless": "5.0"},
    ):
        knobs.check_applies(opencv, facts)
    with pytest.raises(CannotRunHere, match="opencv-python or opencv-contrib-python is not installed"):
        knobs.check_applies(opencv, python | {"package.pillow": "13.0"})


def test_more_workers_than_cores_are_warned_about_and_not_refused():
    setting = knobs.parse("loader.num_workers=8")
    knobs.check_applies(setting, GPU)
    assert "only 2" in knobs.caution(setting, GPU)
    assert knobs.caution(knobs.parse("loader.num_workers=2"), GPU) == ""
    assert knobs.caution(setting, {}) == ""
    assert knobs.caution(setting, {"host.num_cores": Unknown("no cgroup")}) == ""
    assert knobs.caution(knobs.parse("loader.prefetch_factor=8"), GPU) == ""
