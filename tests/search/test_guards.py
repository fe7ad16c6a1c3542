"""Which results are known without a run, from guards that run nothing."""

from __future__ import annotations

import pytest

from dynotune.schema.arm import arm
from dynotune.schema.errors import CannotRunHere
from dynotune.schema.facts import Unknown
from dynotune.schema.setting import Setting
from dynotune.schema.study import Guarded
from dynotune.search import guards

from ..fakes import spec

AUTOCAST = arm([Setting("precision.autocast", "bf16")])
CHANNELS = arm([Setting("layout.channels_last", True)])


def guarded(one, ok):
    return Guarded(
        arm=one.key,
        what="losses",
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
    checked.seen(both, {})
    assert [checked.is_known(one) for one in (AUTOCAST, decoder, both)] == [True, False, False]


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
