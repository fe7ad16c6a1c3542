from __future__ import annotations

import pytest

from dynotune.probe import gpu
from dynotune.probe.sources import nvml
from dynotune.schema.facts import Unknown

INITIAL_PID_NAMESPACE = 4026531836


@pytest.fixture
def bare(root):
    """A machine of its own with two memory nodes; the GPU hangs on the second."""
    root.namespace("pid", INITIAL_PID_NAMESPACE)
    root.write("sys/devices/system/node/has_cpu", "0-1\n")
    root.write("sys/bus/pci/devices/0000:1b:00.0/numa_node", "1\n")
    root.write("sys/bus/pci/devices/0000:1b:00.0/local_cpulist", "8-9,24\n")
    return root


def ask(library, root, env=None, **options):
    return gpu.facts(env or {}, nvml=library, dev=root.path / "dev", root=root.path, **options)


def test_the_state_of_a_gpu_stands_beside_what_it_is(fake_nvml, h200, bare):
    library = fake_nvml(h200 | {"reasons": 0x4 | 0x20})
    facts = ask(library, bare)
    expected = {
        "gpu.count": 1,
        "gpu.index": 0,
        "gpu.name": "NVIDIA H200",
        "gpu.cuda_driver": "13.0",
        "gpu.pcie_generation": 5,
        "gpu.pcie_max_generation": 5,
        "gpu.pcie_width": 8,
        "gpu.pcie_max_width": 16,
        "gpu.pcie_replays": 4,
        "gpu.sm_clock_mhz": 1980,
        "gpu.memory_clock_mhz": 3201,
        "gpu.clock_reasons": ["sw-power-cap", "sw-thermal"],
        "gpu.power_w": 650.5,
        "gpu.power_limit_w": 600.0,
        "gpu.default_power_limit_w": 700.0,
        "gpu.temperature_c": 61,
        "gpu.persistence": True,
        "gpu.ecc": True,
        "gpu.ecc_uncorrected": 0,
        "gpu.remapped_rows_pending": True,
        "gpu.mig": False,
        "gpu.utilisation_percent": 97,
        "gpu.memory_used_bytes": 0,
        "gpu.processes": [],
        "gpu.num_processes": 0,
        "gpu.pids_comparable": True,
        "gpu.numa_node": 1,
        "gpu.cpu_affinity": [8, 9, 24],
    }
    assert {name: facts[name] for name in expected} == expected
    assert set(gpu.NAMES) <= set(facts)
    assert library.num_open == 0


def test_further_gpus_have_a_number_and_the_order_of_the_program(fake_nvml, h200, bare):
    library = fake_nvml(h200, h200 | {"uuid": "GPU-1", "temperature": 70})
    facts = ask(library, bare, {"CUDA_VISIBLE_DEVICES": "1,0"})
    assert (facts["gpu.index"], facts["gpu.temperature_c"]) == (1, 70)
    assert (facts["gpu1.index"], facts["gpu1.temperature_c"]) == (0, 61)
    assert facts["gpu1.name"] == "NVIDIA H200"


def test_other_processes_are_named_where_process_ids_mean_the_same(fake_nvml, h200, bare):
    bare.process(77, name="blender")
    facts = ask(fake_nvml(h200 | {"pids": [77, 78]}), bare)
    assert facts["gpu.processes"] == ["77 blender", "78 (name unknown)"]
    assert facts["gpu.num_processes"] == 2


def test_in_a_container_no_process_is_named_and_none_seen_is_not_none(fake_nvml, h200, root):
    root.namespace("pid", 4026532000)
    root.process(77, name="ours")
    facts = ask(fake_nvml(h200 | {"pids": [77]}), root)
    assert facts["gpu.pids_comparable"] is False
    assert facts["gpu.processes"] == ["77 (name unknown)"]
    facts = ask(fake_nvml(h200), root)
    assert isinstance(facts["gpu.processes"], Unknown)
    assert isinstance(facts["gpu.num_processes"], Unknown)


def test_one_answer_that_nvml_refuses_leaves_the_others(fake_nvml, h200, bare):
    del h200["width"], h200["ecc"], h200["remap_pending"], h200["pids"]
    facts = ask(fake_nvml(h200), bare)
    assert isinstance(facts["gpu.pcie_width"], Unknown)
    assert isinstance(facts["gpu.remapped_rows_pending"], Unknown)
    assert isinstance(facts["gpu.num_processes"], Unknown)
    assert facts["gpu.ecc"] is False  # a GPU that cannot have it has it not
    assert facts["gpu.pcie_generation"] == 5


def test_a_gpu_lost_before_any_question_is_unknown_everywhere(fake_nvml, h200, bare):
    library = fake_nvml(h200, h200)
    library.lose()
    facts = ask(library, bare)
    asked = set(gpu.NAMES) - {"gpu.driver", "gpu.cuda_driver", "gpu.pids_comparable"}
    assert all(isinstance(facts[name], Unknown) for name in asked), facts


@pytest.mark.parametrize("num_calls", range(0, 60, 3))
def test_a_gpu_lost_in_the_middle_is_unknown_from_there_on(fake_nvml, h200, bare, num_calls):
    library = fake_nvml(h200, h200)
    ask_one = library._get
    left = iter(range(num_calls))

    def until_lost(*arguments):
        if next(left, None) is None:
            library.lose()
        return ask_one(*arguments)

    library._get = until_lost
    facts = ask(library, bare)
    assert library.lost
    assert set(gpu.NAMES) <= set(facts)
    # What is asked last.
    assert isinstance(facts.get("gpu.topology", facts["gpu.num_processes"]), Unknown)


def test_without_a_driver_every_name_is_answered(fake_nvml, root):
    for error in (9, 12):
        facts = ask(fake_nvml(init_error=error), root)
        assert set(gpu.NAMES) == set(facts)
        assert isinstance(facts["gpu.cuda_driver"], Unknown)


def test_a_gpu_split_by_mig_says_so(fake_nvml, h200, bare):
    facts = ask(fake_nvml(h200 | {"mig": 1}), bare)
    assert facts["gpu.mig"] is True
    assert isinstance(facts["gpu.sm_clock_mhz"], Unknown)
    assert facts["gpu.cuda_driver"] == "13.0"


def test_a_gpu_hidden_from_the_command_is_not_described(fake_nvml, h200, bare):
    facts = ask(fake_nvml(h200), bare, {"CUDA_VISIBLE_DEVICES": ""})
    assert facts["gpu.count"] == 0
    assert facts["gpu.power_w"] == Unknown("no GPU is visible")


def test_the_only_memory_node_is_that_of_a_gpu_whose_firmware_does_not_say(fake_nvml, h200, bare):
    bare.write("sys/bus/pci/devices/0000:1b:00.0/numa_node", "-1\n")
    assert isinstance(ask(fake_nvml(h200), bare)["gpu.numa_node"], Unknown)
    bare.write("sys/devices/system/node/has_cpu", "0\n")
    assert ask(fake_nvml(h200), bare)["gpu.numa_node"] == 0


def test_without_sys_the_near_processors_are_asked_of_nvml(fake_nvml, h200, root):
    facts = ask(fake_nvml(h200 | {"affinity_words": [0b101, 1]}), root)
    assert facts["gpu.cpu_affinity"] == [0, 2, 64]
    assert isinstance(facts["gpu.numa_node"], Unknown)


@pytest.mark.parametrize(
    ("links", "ancestor", "expected"),
    [
        ((["switch"] * 18, ["switch"] * 18), 50, "0-1 NV18"),
        (([None, "00000000:0b:00.0", "00000000:0B:00.0"], ["00000000:0A:00.0"] * 2), 50, "0-1 NV2"),
        (([], []), 50, "0-1 SYS"),
        (([None], [None]), 10, "0-1 PIX"),
    ],
)
def test_the_way_between_two_gpus(fake_nvml, h200, bare, links, ancestor, expected):
    first, second = (
        h200 | {"nvlinks": links[at], "ancestor": ancestor, "bus": bus}
        for at, bus in enumerate(["00000000:0A:00.0", "00000000:0B:00.0"])
    )
    assert ask(fake_nvml(first, second), bare)["gpu.topology"] == [expected]


def test_gpus_without_nvlink_still_have_a_way(fake_nvml, h200, bare):
    library = fake_nvml(*[h200 | {"ancestor": 40}] * 3)
    assert ask(library, bare)["gpu.topology"] == ["0-1 NODE", "0-2 NODE", "1-2 NODE"]


def test_a_bit_without_a_name_is_not_dropped():
    assert nvml.reason_names(0) == []
    assert nvml.reason_names(0x8 | 0x400) == ["hw-slowdown", "reason-0x400"]


def test_an_older_driver_is_asked_by_the_older_name(fake_nvml, h200, bare):
    class Older(fake_nvml):
        def nvmlDeviceGetCurrentClocksEventReasons(self, gpu):
            raise self.NVMLError(self.NVML_ERROR_FUNCTION_NOT_FOUND)

        def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu):
            return 0x40

    assert ask(Older(h200), bare)["gpu.clock_reasons"] == ["hw-thermal"]
