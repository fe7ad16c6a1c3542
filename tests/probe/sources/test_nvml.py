from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune.probe import nvml
from dynotune.schema.facts import Unknown


def test_the_facts_of_the_first_visible_gpu(fake_nvml, h200):
    library = fake_nvml(h200 | {"uuid": "GPU-0"}, h200 | {"uuid": "GPU-1", "memory": 7})
    facts = nvml.facts({"CUDA_VISIBLE_DEVICES": "1"}, nvml=library)
    assert facts == {
        "gpu.count": 1,
        "gpu.driver": "580.159.04",
        "gpu.nvml_indices": [1],
        "gpu.name": "NVIDIA H200",
        "gpu.uuid": "GPU-1",
        "gpu.compute_capability": "9.0",
        "gpu.memory_bytes": 7,
    }
    assert library.num_open == 0


def test_no_library_and_no_device_file_means_no_gpu(fake_nvml, tmp_path):
    facts = nvml.facts({}, nvml=fake_nvml(init_error=12), dev=tmp_path)
    assert facts["gpu.count"] == 0
    assert isinstance(facts["gpu.name"], Unknown)


def test_no_gpu_at_all_means_none_visible_and_a_silent_driver_means_unknown(fake_nvml, tmp_path):
    assert nvml.visible_gpus({}, nvml=fake_nvml(init_error=12), dev=tmp_path) == []
    (tmp_path / "nvidiactl").touch()
    assert isinstance(nvml.visible_gpus({}, nvml=fake_nvml(init_error=12), dev=tmp_path), Unknown)


def test_no_library_beside_a_device_file_is_unknown(fake_nvml, tmp_path):
    (tmp_path / "nvidia0").touch()
    facts = nvml.facts({}, nvml=fake_nvml(init_error=12), dev=tmp_path)
    assert isinstance(facts["gpu.count"], Unknown)


def test_a_driver_that_is_not_loaded_is_unknown_and_not_zero(fake_nvml, tmp_path):
    facts = nvml.facts({}, nvml=fake_nvml(init_error=9), dev=tmp_path)
    assert isinstance(facts["gpu.count"], Unknown)
    assert isinstance(nvml.visible_gpus({}, nvml=fake_nvml(init_error=9)), Unknown)


def test_hiding_every_gpu_is_a_count_of_zero(fake_nvml, h200):
    facts = nvml.facts({"CUDA_VISIBLE_DEVICES": ""}, nvml=fake_nvml(h200))
    assert facts["gpu.count"] == 0
    assert facts["gpu.name"] == Unknown("no GPU is visible")


def test_a_gpu_split_by_mig_is_unknown(fake_nvml, h200):
    facts = nvml.facts({}, nvml=fake_nvml(h200 | {"mig": 1}))
    assert isinstance(facts["gpu.count"], Unknown) and "gpu.order_known" not in facts
    assert isinstance(facts["gpu.memory_bytes"], Unknown)
    assert facts["gpu.driver"] == "580.159.04"


def test_one_answer_that_nvml_refuses_leaves_the_others(fake_nvml, h200):
    del h200["capability"]
    facts = nvml.facts({}, nvml=fake_nvml(h200))
    assert isinstance(facts["gpu.compute_capability"], Unknown)
    assert facts["gpu.name"] == "NVIDIA H200"


def test_the_order_of_different_gpus_is_known_only_by_the_pci_bus(fake_nvml, h200):
    library = fake_nvml(h200 | {"uuid": "GPU-0"}, h200 | {"uuid": "GPU-1", "name": "NVIDIA L4"})
    assert isinstance(nvml.visible_gpus({}, nvml=library), Unknown)
    assert nvml.facts({}, nvml=library)["gpu.order_known"] is False
    assert nvml.visible_gpus({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, nvml=library) == [0, 1]
    assert nvml.visible_gpus({"CUDA_VISIBLE_DEVICES": "GPU-1"}, nvml=library) == [1]


UUIDS = ["GPU-8932f937-d72c", "GPU-8932aaaa-0000", "GPU-11110000-1111"]


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ("2,0", [2, 0]),
        (" 1 , 2 ", [1, 2]),
        ("0,7,1", [0]),
        ("0,-1,1", [0]),
        ("-1", []),
        ("none", []),
        ("1,1", []),
        ("GPU-1111", [2]),
        ("GPU-8932", []),
        ("GPU-8932f,GPU-1", [0, 2]),
        ("0,GPU-1111", [0, 2]),
    ],
)
def test_visible_devices_select_as_the_driver_does(selection, expected):
    assert nvml.choose(selection, UUIDS) == expected


def test_a_mig_instance_is_not_resolved():
    assert isinstance(nvml.choose("MIG-8932f937", UUIDS), Unknown)


@given(st.text(alphabet="0123456789,-+ GPUMIGabc", max_size=30))
def test_a_selection_never_names_a_gpu_twice_or_one_that_is_not_there(selection):
    chosen = nvml.choose(selection, UUIDS)
    assert isinstance(chosen, Unknown) or (len(set(chosen)) == len(chosen) and set(chosen) <= {0, 1, 2})
