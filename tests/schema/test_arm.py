from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune.schema import redaction
from dynotune.schema.arm import arm_key, canonical, ids_of
from dynotune.schema.setting import Setting
from dynotune.schema.study import Estimate, Guarded, Trial

NAMES = st.sampled_from(
    ["env.A", "env.B", "env.A.B", "env.A-b", "arg.a", "loader.num_workers", "python", "a"]
)
VALUES = st.text(st.sampled_from(" ='\"\\\n\taB1.\u00a0")) | st.sampled_from(
    ["1 env.B=2", "it's", "", "'a b'"]
)
SETTINGS = st.builds(Setting, NAMES, VALUES)
ARMS = st.dictionaries(NAMES, VALUES).map(lambda values: {Setting(*pair) for pair in values.items()})


def estimate(arm: str, against: str = "") -> Estimate:
    return Estimate(arm=arm, against=against, phase="prune", speedup=1.1, ci=None, num_blocks=4)


@given(ARMS)
def test_arm_key_gives_its_settings_back_when_values_hold_spaces_and_quotes(settings: set[Setting]) -> None:
    assert ids_of(arm_key(settings)) == {str(setting) for setting in settings}


@given(ARMS, ARMS)
def test_arm_key_differs_when_the_sets_of_settings_differ(one: set[Setting], other: set[Setting]) -> None:
    assert (arm_key(one) == arm_key(other)) == ({*map(str, one)} == {*map(str, other)})


@given(st.lists(SETTINGS, unique_by=lambda setting: setting.knob).flatmap(st.permutations))
def test_arm_key_is_the_same_when_the_settings_come_in_another_order(settings: list[Setting]) -> None:
    assert arm_key(settings) == arm_key(settings[::-1])


def test_arm_key_is_plain_when_no_value_holds_a_space() -> None:
    settings = [
        Setting("loader.num_workers", 4),
        Setting("alloc.expandable_segments", True),
        Setting("env.A", "$B,*"),
    ]
    assert arm_key(settings) == "alloc.expandable_segments=true env.A=$B,* loader.num_workers=4"
    assert arm_key([]) == "" and ids_of("") == frozenset()


@pytest.mark.parametrize(
    ("recorded", "ids"),
    [
        ("env.A=1 env.B=2", {"env.A=1", "env.B=2"}),
        ("env.A=static 4 loader.num_workers=4", {"env.A=static 4", "loader.num_workers=4"}),
        ("env.A=it's env.B=a  b ", {"env.A=it's", "env.B=a  b "}),
        ('env.A="--a=1 --b=2"', {'env.A="--a=1 --b=2"'}),
        ("env.A=1 B=2", {"env.A=1 B=2"}),
    ],
)
def test_arm_key_is_read_when_an_earlier_version_wrote_it_without_quotes(
    recorded: str, ids: set[str]
) -> None:
    assert ids_of(recorded) == ids


def test_recorded_arms_take_the_present_form_when_an_earlier_version_wrote_them() -> None:
    old, new = "env.A=static 4", arm_key([Setting("env.A", "static 4")])
    trial = msgspec.json.decode(
        msgspec.json.encode({"arm": old, "phase": "prune", "block": 1, "ended": "measured"}), type=Trial
    )
    fields = {"what": "losses", "difference": 0.0, "own": None, "tolerance": 0.0, "num_values": 1, "ok": True}
    guarded = msgspec.convert({"arm": old, **fields}, Guarded)
    assert trial.arm == guarded.arm == estimate(old).arm == estimate("", against=old).against == new
    assert trial.ids == guarded.ids == estimate(old).ids == estimate("", against=old).against_ids == {old}


def test_arm_key_hides_a_secret_when_the_value_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_known", set())
    secret = Setting("env.API_TOKEN", 'it\'s a "quiet" 7')
    redaction.learn({}, settings=[secret])
    document = msgspec.json.encode([arm_key([secret, Setting("a", "1")])]).decode()
    shown = redaction.redacted(document)
    assert "quiet" not in shown
    assert ids_of(msgspec.json.decode(shown)[0]) == {"a=1", "env.API_TOKEN=@redacted"}


@given(st.text())
def test_canonical_key_is_its_own_canonical_key_when_any_text_is_read(key: str) -> None:
    assert canonical(canonical(key)) == canonical(key)
    assert ids_of(canonical(key)) == ids_of(key)
