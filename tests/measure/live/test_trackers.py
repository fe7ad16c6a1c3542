"""Experiment trackers that keep to files what measured runs log."""

from __future__ import annotations

import pytest

from dynotune.measure.live.launch_plan import launch_plan
from dynotune.schema.setting import Setting

from ...fakes import spec


@pytest.fixture
def variables(tmp_path, monkeypatch):
    """Gives the variables of a run's command, of which the user has set one."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def of(*settings: Setting, **options: bool) -> dict[str, str]:
        run = spec(cwd=tmp_path, base=tmp_path, env={"PATH": "/bin", "WANDB_MODE": "online"}, **options)
        launch = launch_plan(
            run,
            settings,
            folder=tmp_path / "run",
            label="a run",
            purpose="measured",
            facts={"torch.version": "2.13.0"},
        )
        return launch.env

    return of


def test_trackers_send_nothing_when_they_are_to_be_offline(variables):
    env = variables(offline_trackers=True)
    assert (env["WANDB_MODE"], env["CLEARML_OFFLINE_MODE"], env["NEPTUNE_MODE"]) == (
        "offline",
        "1",
        "offline",
    )


def test_trackers_are_left_alone_when_nobody_asks(variables):
    env = variables()
    assert env["WANDB_MODE"] == "online"
    assert "CLEARML_OFFLINE_MODE" not in env


def test_setting_of_a_trackers_variable_wins_when_trackers_are_to_be_offline(variables):
    assert variables(Setting("env.WANDB_MODE", "shared"), offline_trackers=True)["WANDB_MODE"] == "shared"
