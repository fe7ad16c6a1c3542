"""Which results are known without a run, from guards that run nothing."""

from __future__ import annotations

import pytest

from dynotune.schema.arm import arm
from dynotune.schema.errors import CannotRunHere
from dynotune.schema.events import ArmResults
from dynotune.schema.facts import Unknown
from dynotune.schema.setting import Setting
from dynotune.schema.study import Guarded
from dynotune.search import guards

from ..fakes import spec

AUTOCAST = arm([Setting("precision.autocast", "bf16")])
FUSED = arm([Setting("optimizer.fused", True)])
CHANNELS = arm([Setting("layout.channels_last", True)])


def guarded(one, ok, what="losses"):
    return Guarded(
        arm=one.key,
        what=what,
        difference=0.5,
        own=0.01,
        tolerance=0.1,
        num_values=20,
        ok=ok,
        reason="They differ.",
    )


def test_calls_with_the_same_inputs_tell_nothing_of_a_decoder(monkeypatch, tmp_path):
    decoder = arm([Setting("decode.backend", "opencv")])
    both = arm([*AUTOCAST.settings, *decoder.settings])
    monkeypatch.setattr(guards.guard, "within", lambda settings, event: guarded(arm(settings), ok=True))
    checked = guards.Guards(spec(), tmp_path, {}, [])
    checked.seen(both, ArmResults(arm=0, knobs=["precision.autocast"]))
    assert [checked.is_known(one) for one in (AUTOCAST, decoder, both)] == [True, False, False]


def told_within(monkeypatch, tmp_path, one, *events):
    """Guards that saw these events of one arm in a live run, all right."""
    whats = iter(event.what for event in events)
    monkeypatch.setattr(
        guards.guard, "within", lambda settings, event: guarded(arm(settings), ok=True, what=next(whats))
    )
    checked = guards.Guards(spec(), tmp_path, {}, [])
    for event in events:
        checked.seen(one, event)
    return checked


def test_calls_of_modules_tell_nothing_of_an_optimizers_updates(monkeypatch, tmp_path):
    both = arm([*AUTOCAST.settings, *FUSED.settings])
    calls = ArmResults(arm=0, knobs=["precision.autocast"])
    checked = told_within(monkeypatch, tmp_path, both, calls)
    assert [checked.is_known(one) for one in (AUTOCAST, FUSED, both)] == [True, False, False]


def test_calls_and_updates_together_tell_of_an_arm_that_changes_both(monkeypatch, tmp_path):
    pinned = Setting("loader.pin_memory", True)
    both = arm([*AUTOCAST.settings, *FUSED.settings, pinned])
    calls = ArmResults(arm=0, knobs=["precision.autocast"])
    updates = ArmResults(arm=0, what="updates", knobs=["optimizer.fused"])
    checked = told_within(monkeypatch, tmp_path, both, calls, updates)
    known = [checked.is_known(one) for one in (AUTOCAST, FUSED, both, CHANNELS)]
    assert known == [True, True, True, False]
    assert checked.of(both, 1.0).what == "outputs"
    assert checked.of(FUSED, 1.0).what == "updates"


def test_outputs_of_an_earlier_study_vouch_for_no_optimizer(tmp_path):
    both = arm([*AUTOCAST.settings, *FUSED.settings])
    earlier = guards.Guards(spec(), tmp_path, {}, [guarded(both, ok=True, what="outputs")])
    assert not earlier.is_known(both)
    assert guards.Guards(spec(), tmp_path, {}, [guarded(both, ok=True)]).is_known(both)


def test_right_updates_leave_what_changes_calls_to_a_run(monkeypatch, tmp_path):
    updates = ArmResults(arm=0, what="updates", knobs=["optimizer.fused"])
    checked = told_within(monkeypatch, tmp_path, FUSED, updates)
    assert not checked.is_known(arm([*FUSED.settings, *CHANNELS.settings]))


def test_guards_know_a_smaller_arm_when_a_larger_one_with_spaces_left_results_right(tmp_path):
    spaced = Setting("env.CUDA_CACHE_PATH", "/x y")
    larger = arm([*AUTOCAST.settings, *CHANNELS.settings, spaced])
    checked = guards.Guards(spec(), tmp_path, {}, [guarded(larger, ok=True)])
    assert checked.is_known(arm([*AUTOCAST.settings, spaced]))
    assert not checked.is_known(arm([*AUTOCAST.settings, Setting("env.CUDA_CACHE_PATH", "/x")]))


@pytest.mark.parametrize("is_shared", [True, False])
def test_guards_start_with_compiled_code_of_other_runs_when_these_share_it(monkeypatch, tmp_path, is_shared):
    seen = []

    def fails(run, settings, **how):
        seen.append(how["cache_folder"])
        raise CannotRunHere("no run is needed")

    monkeypatch.setattr(guards.guard, "run_settings", fails)
    shared = tmp_path / "shared"
    checked = guards.Guards(spec(), tmp_path / "guard", {}, [], shared if is_shared else None)
    assert isinstance(checked.of(AUTOCAST, 10.0), Unknown)
    assert seen == [shared if is_shared else tmp_path / "guard" / "caches" / "baseline"]
