"""In what two machines differ."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dynotune.doctor import differences
from dynotune.doctor.machine_differences import why
from dynotune.schema.facts import Unknown

from .machines import NOBODY, h200


def facts(changes, here=None):
    return [each.fact for each in differences(h200(here), h200(changes))]


def test_a_machine_does_not_differ_from_itself():
    assert facts({}) == []


def test_machine_difference_holds_both_values_and_why_they_can_matter():
    (found,) = differences(h200(), h200({"torch.cudnn": "9.1"}))
    assert (found.fact, found.here, found.there) == ("torch.cudnn", "9.19.0.56", "9.1")
    assert found.matters


def test_those_that_can_matter_come_before_the_others_and_the_gpu_before_all():
    changes = {"host.zzz": 1, "host.kernel": "5.15", "gpu.name": "NVIDIA A100", "torch.version": "2.9.0"}
    assert facts(changes, {"host.zzz": 2}) == ["gpu.name", "torch.version", "host.kernel", "host.zzz"]


def test_machine_differences_leave_out_a_machines_identity_and_its_present_state():
    changes = {
        "gpu.uuid": "GPU-2",
        "gpu.processes": ["1 python"],
        "gpu.sm_clock_mhz": 1980,
        "gpu.pcie_generation": 5,
        "host.load_1min": 7.0,
        "host.memory_available_bytes": 5,
        "python.executable": "/home/me/bin/python",
        "env_from.OMP_NUM_THREADS": "inherited from pid 7 (bash)",
    }
    assert facts(changes) == []


def test_a_variable_that_is_a_fact_of_one_machine_alone_is_not_set_on_the_other():
    (found,) = differences(h200(), h200({"NCCL_P2P_DISABLE": "1"}))
    assert (found.fact, found.here, found.there) == ("env.NCCL_P2P_DISABLE", None, "1")


def test_a_fact_of_one_machine_alone_is_unknown_of_the_other_and_comes_last():
    found = differences(h200({"host.new": 1}), h200({"gpu.driver": "570.1", "torch.nccl": NOBODY}))
    assert [each.fact for each in found] == ["gpu.driver", "torch.nccl", "host.new"]
    assert isinstance(found[-1].there, Unknown)


def test_unknown_for_two_reasons_is_no_difference():
    assert facts({"torch.nccl": Unknown("a")}, {"torch.nccl": Unknown("b")}) == []


def test_sizes_that_nearly_agree_do_not_differ():
    total = h200()["host.memory_bytes"]
    assert facts({"host.memory_bytes": int(total * 0.99)}) == []
    assert facts({"host.memory_bytes": int(total * 0.9)}) == ["host.memory_bytes"]


def test_further_gpus_matter_for_the_same_reasons():
    assert why("gpu3.power_limit_w") == why("gpu.power_limit_w") != ""


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text("ab:", max_size=5)
)
NAMES = st.sampled_from(
    ["gpu.name", "host.memory_bytes", "env.A", "package.b", "host.x", "torch.version", "gpu.uuid"]
)


@given(st.dictionaries(NAMES, VALUES), st.dictionaries(NAMES, VALUES))
def test_differences_are_the_same_seen_from_the_other_side(left, right):
    there = {(each.fact, each.matters) for each in differences(left, right)}
    here = {(each.fact, each.matters) for each in differences(right, left)}
    assert here == there
