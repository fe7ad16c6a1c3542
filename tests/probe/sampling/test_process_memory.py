"""What NVML counts for a process, as far as it says."""

import pytest

from dynotune.probe import process_bytes, used_bytes
from dynotune.schema.facts import Unknown

GPU = {"uuid": "GPU-0", "name": "NVIDIA H200", "memory": 1000, "used": 700, "pids": [7, 8], "held": {7: 500, 8: None}}


def test_a_process_is_known_by_its_number_and_its_gpu(fake_nvml):
    nvml = fake_nvml(GPU, GPU | {"uuid": "GPU-1", "held": {7: 20}, "used": 30})
    assert process_bytes({}, 0, 7, nvml=nvml) == 500
    assert process_bytes({"CUDA_VISIBLE_DEVICES": "1"}, 0, 7, nvml=nvml) == 20
    assert used_bytes({"CUDA_VISIBLE_DEVICES": "1"}, 0, nvml=nvml) == 30


@pytest.mark.parametrize(
    ("env", "index", "pid", "reason"),
    [
        ({}, 0, 9, "does not list the process"),
        ({}, 0, 8, "without its memory"),
        ({}, 1, 7, "lists no GPU 1"),
        ({"CUDA_VISIBLE_DEVICES": "MIG-1"}, 0, 7, "MIG"),
    ],
)
def test_what_is_not_told_is_unknown(fake_nvml, env, index, pid, reason):
    found = process_bytes(env, index, pid, nvml=fake_nvml(GPU))
    assert isinstance(found, Unknown)
    assert reason in found.reason


def test_without_a_driver_nothing_is_known(fake_nvml):
    nvml = fake_nvml(init_error=12)
    assert isinstance(process_bytes({}, 0, 7, nvml=nvml), Unknown)
    assert isinstance(used_bytes({}, 0, nvml=nvml), Unknown)
