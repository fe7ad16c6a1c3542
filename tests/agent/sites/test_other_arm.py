"""Settings of another arm, looked for in a process that has them or not."""

import os
from types import SimpleNamespace

import pytest

from dynotune.agent.core.program import Program
from dynotune.agent.sites.other_arm import OtherArm


def planned(knob, value, **site):
    return {"knob": knob, "value": value, "site": site}


def of_variable(name, value):
    return planned("env." + name, value, type="env", name=name)


def of_loader(argument, value):
    return planned(
        "loader." + argument,
        value,
        type="constructor",
        targets=["torch.utils.data.DataLoader"],
        argument=argument,
    )


def other_arm(*settings):
    errors = []
    arm = OtherArm(list(settings), Program("", errors.append, lambda *error: errors.append(error)))
    return arm, errors


@pytest.mark.parametrize(
    ("setting", "found"),
    [
        (of_variable("PATH", os.environ.get("PATH", "")), ["env.PATH"]),
        (of_variable("PATH", "/another"), []),
        (of_variable("PATH", "@unset"), []),
        (of_variable("DYNOTUNE_NOTHING", "@unset"), ["env.DYNOTUNE_NOTHING"]),
        (of_variable("DYNOTUNE_NOTHING", "1"), []),
    ],
)
def test_other_arm_has_a_variable_when_the_process_began_with_its_value(setting, found):
    arm, errors = other_arm(setting)
    assert (arm.already(), errors) == (found, [])


def test_other_arm_lacks_a_variable_when_the_program_itself_set_it(monkeypatch):
    monkeypatch.setenv("DYNOTUNE_NOTHING", "1")
    assert other_arm(of_variable("DYNOTUNE_NOTHING", "1"))[0].already() == []


@pytest.mark.parametrize(("drawn", "has"), [([2], True), ([2, 0], False), ([], False)])
def test_other_arm_has_a_loaders_setting_when_each_loader_drawn_from_has_it(drawn, has):
    arm, errors = other_arm(of_loader("num_workers", 2))
    for num in drawn:
        arm.on_loader(SimpleNamespace(num_workers=num))
    assert (arm.already(), errors) == (["loader.num_workers"] if has else [], [])


def test_other_arm_counts_settings_of_one_site_together_when_one_is_not_had():
    arm, _ = other_arm(of_loader("num_workers", 2), of_loader("prefetch_factor", 4))
    arm.on_loader(SimpleNamespace(num_workers=2, prefetch_factor=2))
    assert arm.already() == []


def test_other_arm_leaves_out_a_setting_when_its_site_cannot_tell():
    arm, errors = other_arm(planned("compile.mode", "default", type="action", action="compile"))
    assert (arm.already(), errors) == ([], [])
