"""Turn text such as `knob=value` into settings with values of the knob's type."""

import re
from collections.abc import Iterable

from dynotune.knobs.catalogue import get
from dynotune.schema import redaction
from dynotune.schema.errors import UsageError
from dynotune.schema.knob import AllocConf, Argument, Env, Knob, Scalar
from dynotune.schema.setting import UNSET, Setting

LARGEST = 2**63 - 1
"""Largest number in settings, as in records and recipes."""

_BOOLS = {
    **dict.fromkeys(("true", "1", "yes", "on"), True),
    **dict.fromkeys(("false", "0", "no", "off"), False),
}
_FLOAT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?", re.IGNORECASE)


def parse(text: str) -> Setting:
    """Read `knob=value` as a setting with a value of the knob's type.

    Raises UsageError: no `=`, no such knob, or a value that the knob refuses; the message lists the accepted
    values.
    """
    knob_id, equals, value = text.partition("=")
    knob_id = knob_id.strip()
    if not equals:
        knob = get(knob_id)
        raise UsageError(
            f"{text!r} names a knob but no value.",
            hint=f"Write {knob_id}=VALUE: {_allowed(knob)}.",
        )
    knob = get(knob_id)
    if isinstance(knob.site, Env):
        # An environment variable's value is taken literally, spaces included.
        if "\0" in value:
            what = "a NUL character, which is not possible in a variable"
            raise UsageError(f"The value of {knob_id} contains {what}.")
        _refuse_unreadable(knob, value)
        return Setting(knob_id, value)
    if isinstance(knob.site, Argument):
        # A placeholder's text is taken literally, spaces included; if it is empty, the argument is left out.
        return Setting(knob_id, value)
    return Setting(knob_id, _typed(knob, value.strip()))


def parse_all(texts: Iterable[str]) -> list[Setting]:
    """Read the settings of one arm, at most one for each knob.

    Secrets among their values are hidden from now on.

    Raises UsageError: as `parse`, or two settings of one knob differ.
    """
    chosen: dict[str, Setting] = {}
    for text in texts:
        setting = parse(text)
        if chosen.setdefault(setting.knob, setting) != setting:
            other = chosen[setting.knob]
            raise UsageError(f"{other} and {setting} both set {setting.knob}.", hint="Give one of them.")
    redaction.learn({}, settings=chosen.values())
    return list(chosen.values())


def _refuse_unreadable(knob: Knob, text: str) -> None:
    """Refuse a value that readers of a known variable would take for another value, or for none."""
    if text == UNSET or (knob.type == "str" and not knob.values):
        return
    value = _converted(knob.type, text)
    if value is None or _is_beyond(knob, value) or (knob.values and value not in knob.values):
        raise UsageError(f"{knob.id} cannot be {text!r}.", hint=f"It takes {_allowed(knob)}.")


def _is_beyond(knob: Knob, value: Scalar) -> bool:
    if not isinstance(value, int | float):
        return False
    if abs(value) > LARGEST:
        return True
    if knob.minimum is not None and value < knob.minimum:
        return True
    return knob.maximum is not None and value > knob.maximum


def _typed(knob: Knob, text: str) -> Scalar:
    if text == UNSET:
        raise UsageError(
            f"{UNSET} takes environment variables away; {knob.id} is not one.",
            hint=f"{knob.id} takes {_allowed(knob)}.",
        )
    value = _converted(knob.type, text)
    if isinstance(value, str) and knob.values:
        value = next((known for known in knob.values if str(known).lower() == value.lower()), None)
    if isinstance(knob.site, AllocConf) and isinstance(value, str) and not _is_one_value(value):
        value = None
    if value is None or _is_beyond(knob, value) or (knob.values and value not in knob.values):
        raise UsageError(f"{knob.id} cannot be {text!r}.", hint=f"It takes {_allowed(knob)}.")
    return value


def _converted(type_: str, text: str) -> Scalar | None:
    """Convert the text; None if it is not of the type."""
    if type_ == "bool":
        return _BOOLS.get(text.lower())
    if type_ == "int":
        # As many digits as a float has.
        return int(text) if re.fullmatch(r"[+-]?[0-9]{1,300}", text) else None
    if type_ == "float":
        return float(text) if _FLOAT.fullmatch(text) else None
    return text or None


def _is_one_value(text: str) -> bool:
    """Tell whether the text is a single value: a value of an allocator key must not add further keys."""
    return re.fullmatch(r"[^\s,:\[\]]+|\[[^\s\[\]]+\]", text) is not None


def _allowed(knob: Knob) -> str:
    unset = f", or {UNSET} to take the variable away" if isinstance(knob.site, Env) else ""
    if knob.values:
        return "one of " + ", ".join(str(value) for value in knob.values) + unset
    words = {"bool": "true or false", "int": "a whole number", "float": "a number", "str": "text"}[knob.type]
    if isinstance(knob.site, Env) and knob.type == "str":
        return f"any text{unset}"
    if knob.minimum is not None and knob.maximum is not None:
        return f"{words} from {knob.minimum:.0f} to {knob.maximum:.0f}{unset}"
    return f"{words}{unset}" if knob.minimum is None else f"{words}, {knob.minimum:g} or more{unset}"
