"""The user's requests about candidates: allowed effects, further knobs, exclusions, and values."""

from collections.abc import Sequence
from typing import get_args

import msgspec

from dynotune import knobs
from dynotune.schema.errors import UsageError
from dynotune.schema.knob import WITHOUT_ROUNDING, Effect, Env
from dynotune.schema.setting import Setting

UNASKED: tuple[Effect, ...] = (*WITHOUT_ROUNDING, "numerics")
"""Effects that are tried without the user's permission. Results of settings that round are checked."""

_ONE_OF_TWO = "Remove one of the two options."


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        allowed: effects that findings' candidates may have.
        settings: settings to try, without repeats; `extra_knobs`: knobs of which dynotune chooses values to
            try.
        excluded: settings that are not tried; `excluded_knobs`: ids of knobs of which no value is tried.
    """

    allowed: frozenset[Effect] = frozenset(UNASKED)
    settings: list[Setting] = []
    extra_knobs: list[str] = []
    excluded: frozenset[Setting] = frozenset()
    excluded_knobs: frozenset[str] = frozenset()

    def names(self, setting: Setting) -> bool:
        return setting in self.settings or setting.knob in self.extra_knobs

    def leaves_out(self, setting: Setting) -> bool:
        return setting in self.excluded or setting.knob in self.excluded_knobs


def parse(
    *,
    allow: Sequence[str] = (),
    exact: bool = False,
    extra: Sequence[str] = (),
    exclude: Sequence[str] = (),
    values: Sequence[str] = (),
) -> Asked:
    """Parse the options of the command line. `exact`: try no setting that rounds.

    Raises:
        UsageError: an option names an effect, knob or value that does not exist, or a knob that dynotune
            never sets; or options contradict each other.
    """
    allowed = frozenset([*(WITHOUT_ROUNDING if exact else UNASKED), *map(_effect, allow)])
    settings = [_settable(knobs.parse(text)) for text in extra if "=" in text]
    found = Asked(
        allowed=allowed,
        extra_knobs=[_with_values(text.strip()) for text in extra if "=" not in text],
        excluded=frozenset(_settable(knobs.parse(text)) for text in exclude if "=" in text),
        excluded_knobs=frozenset(knobs.get(text.strip()).id for text in exclude if "=" not in text),
        settings=list(dict.fromkeys([*settings, *(setting for text in values for setting in _values(text))])),
    )
    both = [knob_id for knob_id in found.extra_knobs if knob_id in found.excluded_knobs]
    for setting in filter(found.leaves_out, found.settings):
        both.append(setting.knob if setting.knob in found.excluded_knobs else str(setting))
    if both:
        raise UsageError(f"{both[0]} is both to be tried and to be left out.", hint=_ONE_OF_TWO)
    return found


def refuse_rounding(asked: Asked) -> None:
    """Raise UsageError: --exact stands beside an option that asks for settings that round."""
    if "numerics" in asked.allowed:
        raise UsageError("--exact and --allow numerics contradict each other.", hint=_ONE_OF_TWO)
    knob_ids = {knob_id: knob_id for knob_id in asked.extra_knobs}
    knob_ids |= {str(setting): setting.knob for setting in asked.settings}
    for name, knob_id in knob_ids.items():
        if knobs.get(knob_id).effect == "numerics":
            raise UsageError(f"{name} rounds numbers differently, which --exact forbids.", hint=_ONE_OF_TWO)


def first_values(asked: Asked, settings: Sequence[Setting]) -> list[Setting]:
    """Return, for the baseline, the first value of each placeholder without a value in `settings`; else
    UsageError."""
    named: dict[str, list[Setting]] = {}
    for setting in asked.settings:
        if setting.knob.startswith("arg.") and all(one.knob != setting.knob for one in settings):
            named.setdefault(setting.knob, []).append(setting)
    for knob_id, values in named.items():
        if len(values) < 2:
            raise UsageError(
                f"{knob_id} has only one value, so there is nothing to compare it with.",
                hint=f"Give several, the one to beat first: --values {knob_id}=A,B",
            )
    return [values[0] for values in named.values()]


def _effect(word: str) -> Effect:
    effects: tuple[Effect, ...] = get_args(Effect)
    if word == "system":
        raise UsageError(
            "Settings of the system are never applied by dynotune.",
            hint="dynotune doctor writes the commands for an administrator to read.",
        )
    for effect in effects:
        if effect == word:
            return effect
    known = [effect for effect in effects if effect not in (*UNASKED, "system")]
    raise UsageError(
        f"--allow {word} is no effect.", hint=f"It is {' or '.join(known)}; `dynotune knobs` lists them."
    )


def _with_values(knob_id: str) -> str:
    knob = knobs.get(knob_id)
    if isinstance(knob.site, Env):
        raise UsageError(
            f"--try {knob_id} names no value. Its value can be any text, so none is tried by default.",
            hint=f"Write --try {knob_id}=VALUE.",
        )
    return knob.id


def _values(text: str) -> list[Setting]:
    knob_id, equals, values = text.partition("=")
    words = [word.strip() for word in values.split(",")]
    if not equals or not all(words):
        raise UsageError(
            f"--values {text} does not have the form KNOB=VALUE,VALUE.",
            hint=(
                "For example --values loader.num_workers=2,4,8. A value with a comma in it: --try KNOB=VALUE."
            ),
        )
    return list(dict.fromkeys(_settable(knobs.parse(f"{knob_id}={word}")) for word in words))


def _settable(setting: Setting) -> Setting:
    if setting.knob in ("git.ref", "python"):
        raise UsageError(
            f"{setting} is compared, not searched for.", hint=f"`dynotune compare {setting} -- COMMAND` does."
        )
    if knobs.get(setting.knob).effect == "system":
        raise UsageError(
            f"{setting} is a setting of the system, which dynotune never applies.",
            hint="dynotune doctor writes the commands for an administrator to read.",
        )
    return setting
