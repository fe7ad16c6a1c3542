"""Check settings from elsewhere: of a recipe, a pack, a folder of caches. Only what `check` accepts is
applied.

A variable can make a program load code, read other files, or trust others, and no list of such variables is
complete. So nothing is accepted but what the allow-list names: entries of the catalogue with
`from_elsewhere`, and the variables of foreign.toml, each with its accepted values. No accepted value names a
file, a module, a library or an address: the user always has to type a path.
docs/reference/from-elsewhere.md shows the list.
"""

import functools
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from dynotune.knobs.catalogue import all_knobs, get
from dynotune.schema.data_file import table
from dynotune.schema.knob import OWN_VALUES, Env, Scalar
from dynotune.schema.redaction import MARK, redacted
from dynotune.schema.setting import UNSET, Setting
from dynotune.text import words

_NUMBER = re.compile(r"[+-]?[0-9]{1,18}(\.[0-9]{1,18})?", re.ASCII)


class _Tunes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Environment variables that are not in the catalogue and only tune the program, and a pattern for their
    accepted values."""

    values: str
    names: tuple[str, ...]


class _Debugging(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Environment variables that a recipe from elsewhere may unset, but not set."""

    names: tuple[str, ...]


class _Variables(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file foreign.toml."""

    tunes: tuple[_Tunes, ...]
    debugging: _Debugging


class Allowed(NamedTuple):
    """What may come from elsewhere of one knob or variable.

    Args:
        knob: the knob's id, such as `env.NAME`.
        values: a pattern that the whole text of the value has to match; `values` for all that the knob
            accepts, "" for none.
        unset: whether `@unset` may come from elsewhere; true for no other site than a variable.
    """

    knob: str
    values: str
    unset: bool


@functools.cache
def allow_list() -> dict[str, Allowed]:
    """Return what may come from elsewhere by the knob's id: entries of the catalogue that say so, and further
    variables. All else must be typed by the user."""
    variables = table(__package__, "foreign.toml", _Variables)
    rows = [
        Allowed(knob.id, knob.from_elsewhere, unset=isinstance(knob.site, Env))
        for knob in all_knobs()
        if knob.from_elsewhere
    ]
    rows += [
        Allowed(f"env.{name}", tunes.values, unset=True) for tunes in variables.tunes for name in tunes.names
    ]
    rows += [Allowed(f"env.{name}", "", unset=True) for name in variables.debugging.names]
    return {row.knob: row for row in rows}


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
    """Tell whether only the user may set this: a knob or a value that the allow-list does not name.

    A placeholder of any name is allowed as `arg.NAME` is. A knob that does not exist need not be typed, since
    nobody can apply it.
    """
    general, _, _ = setting.knob.partition(".")
    row = allow_list().get("arg.NAME" if general == "arg" else setting.knob)
    if row is None:
        return general == "env" or any(knob.id == setting.knob for knob in all_knobs())
    if general == "env" and setting.value == UNSET:
        return not row.unset
    return not _is_accepted(row, setting.value)


def _is_accepted(row: Allowed, value: Scalar) -> bool:
    text = str(value)
    if row.values != OWN_VALUES:
        return bool(row.values) and re.fullmatch(row.values, text, re.ASCII) is not None
    knob = get(row.knob)
    if knob.values:
        return text in map(str, knob.values)
    return not isinstance(value, str) or _NUMBER.fullmatch(text) is not None


def how_to_type(setting: Setting) -> str:
    """Return the option that makes this setting, quoted for a shell; the user has to fill in a secret."""
    return f"--set {words.command([redacted(str(setting)).replace(MARK, 'VALUE')])}"
