"""What NVML counts for a process, as far as it says, with other processes apart."""

import pytest

from dynotune.probe import DeviceMemory, device_memory, own_bytes
from dynotune.schema.facts import Unknown

GIB = 1 << 30
GPU = {
    "uuid": "GPU-0",
    "name": "NVIDIA H200",
    "memory": 1000,
    "used": 700,
    "pids": [7, 8],
    "held": {7: 500, 8: None},
}


def test_the_memory_of_a_gpu_is_told_by_process(fake_nvml):
    nvml = fake_nvml(GPU, GPU | {"uuid": "GPU-1", "held": {7: 20}, "used": 30})
    assert device_memory({}, 0, nvml=nvml) == DeviceMemory(700, {7: 500})
    assert device_memory({"CUDA_VISIBLE_DEVICES": "1"}, 0, nvml=nvml) == DeviceMemory(30, {7: 20})


@pytest.mark.parametrize(
    ("env", "index", "reason"), [({}, 1, "lists no GPU 1"), ({"CUDA_VISIBLE_DEVICES": "MIG-1"}, 0, "MIG")]
)
def test_device_memory_is_unknown_when_nvml_does_not_tell(fake_nvml, env, index, reason):
    found = device_memory(env, index, nvml=fake_nvml(GPU))
    assert isinstance(found, Unknown)
    assert reason in found.reason


def test_without_a_driver_nothing_is_known(fake_nvml):
    found = device_memory({}, 0, nvml=fake_nvml(init_error=12))
    assert isinstance(found, Unknown)
    assert own_bytes(found, found, 7, 0) == (found, "")


def test_a_process_that_nvml_lists_has_what_is_counted_for_it():
    now = DeviceMemory(9 * GIB, {7: 2 * GIB, 8: 7 * GIB})
    assert own_bytes(now, Unknown("not asked"), 7, GIB) == (2 * GIB, "")


def test_under_another_number_it_is_the_one_that_came_whatever_others_took_meanwhile():
    before = DeviceMemory(4 * GIB, {100: 4 * GIB})
    now = DeviceMemory(19 * GIB, {100: 8 * GIB, 101: 2 * GIB, 102: 9 * GIB})
    assert own_bytes(now, before, 7, GIB + 1)[0] == 2 * GIB
    assert own_bytes(now._replace(by_pid={7: GIB, 101: 2 * GIB}), before, 7, GIB + 1)[0] == 2 * GIB
    assert isinstance(
        own_bytes(now._replace(by_pid={101: 2 * GIB, 102: 3 * GIB}), before, 7, GIB)[0], Unknown
    )


def test_device_memory_is_the_devices_growth_when_nvml_lists_no_process():
    before, now = DeviceMemory(GIB, {}), DeviceMemory(5 * GIB, {})
    assert own_bytes(now, before, 7, 2 * GIB) == (
        4 * GIB,
        "the increase of the device's used memory since the command's start",
    )
    for reserved in (GIB // 2, 5 * GIB):
        assert isinstance(own_bytes(now, before, 7, reserved)[0], Unknown)
