"""Check settings from elsewhere: of a recipe, a pack, a folder of caches. Only what `check` accepts is
applied.

A variable can make a program load code, read other files, or trust others, and no list of such variables is
complete. So this module lists the variables that only tune, each with its accepted values. No accepted value
names a file, a module, a library or an address: the user always has to type a path.
"""

import re
import tomllib
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import NamedTuple

from dynotune.knobs.catalogue import all_knobs
from dynotune.schema.knob import Env
from dynotune.schema.redaction import MARK, redacted
from dynotune.schema.setting import UNSET, Setting
from dynotune.text import words

_NUMBER = r"[+-]?[0-9]{1,18}(\.[0-9]{1,18})?"
_SWITCH = r"(?i:0|1|true|false|yes|no|on|off)"
_TOLD = tomllib.loads(files(__package__).joinpath("foreign.toml").read_text("utf-8"))
_ALLOWED = {name: re.compile(each["values"], re.ASCII) for each in _TOLD["tunes"] for name in each["names"]}
_ALLOWED |= {
    knob.id.removeprefix("env."): re.compile(
        "|".join(map(re.escape, map(str, knob.values))) or _NUMBER, re.ASCII
    )
    for knob in all_knobs()
    # The other variables name folders of code that runs.
    if isinstance(knob.site, Env) and (knob.type != "str" or knob.values)
}
_DEBUGGING = frozenset(_TOLD["debugging"]["names"])


class Checked(NamedTuple):
    """Settings from elsewhere, divided by `check`.

    Args:
        applied: settings that may be applied, and those that the user typed.
        left_out: settings that only the user may set, but did not type.
    """

    applied: list[Setting]
    left_out: list[Setting]


def check(found: Iterable[Setting], typed: Sequence[Setting] = ()) -> Checked:
    """Divide settings from elsewhere into those that may be applied and the others. The user's own settings
    win."""
    given = {setting.knob: setting for setting in typed}
    chosen = {setting.knob: setting for setting in found} | given
    left_out = {knob for knob, setting in chosen.items() if knob not in given and must_be_typed(setting)}
    return Checked(
        [setting for knob, setting in chosen.items() if knob not in left_out],
        [setting for knob, setting in chosen.items() if knob in left_out],
    )


def check_variables(found: Iterable[tuple[str, str]]) -> tuple[dict[str, str], dict[str, str]]:
    """Divide variables from elsewhere, as `check` does, into those that may be set and the others."""
    checked = check([Setting(f"env.{name}", value) for name, value in found])
    applied, left_out = (
        {setting.knob.removeprefix("env."): str(setting.value) for setting in part} for part in checked
    )
    return applied, left_out


def must_be_typed(setting: Setting) -> bool:
    """Tell whether only the user may set this: a variable or value that is not known to be for tuning
    only."""
    text = str(setting.value)
    if setting.knob in ("python", "git.ref"):
        return True
    if setting.knob.startswith("arg."):
        # Any other text may name a file to the command.
        return re.fullmatch(rf"{_NUMBER}|{_SWITCH}", text, re.ASCII) is None
    name = setting.knob.removeprefix("env.")
    if name == setting.knob:
        return False
    if text == UNSET:
        return name not in _ALLOWED and name not in _DEBUGGING
    return name not in _ALLOWED or _ALLOWED[name].fullmatch(text) is None


def how_to_type(setting: Setting) -> str:
    """Return the option that makes this setting, quoted for a shell; the user has to fill in a secret."""
    return f"--set {words.command([redacted(str(setting)).replace(MARK, 'VALUE')])}"
