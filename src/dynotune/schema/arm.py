"""An arm, and its settings as one text, from which a reader gets exactly these settings back.

The identity of an arm is the set of its settings. Documents record the set as a text, its key. A setting
whose text holds white space, a quote or a backslash is quoted as in a shell. Version 0.2 quoted nothing;
`ids_of` reads both forms.
"""

import functools
import hashlib
import re
import shlex
from collections.abc import Iterable

import msgspec

from dynotune.schema.setting import Setting

_QUOTE_WITHIN = "'\"'\"'"
_SPECIAL = re.compile(r"[\s'\"\\]")
_BEGIN = r"[a-z]\w*(?:\.[^\s=]+)?="
"""The begin of a setting: the id of a knob, which begins in lower case, and an equals sign."""
_SETTING = rf"(?:'(?:[^']|{_QUOTE_WITHIN})*'|{_BEGIN}[^\s'\"\\]*)"
_KEY = re.compile(rf"{_SETTING}(?: {_SETTING})*")


class Arm(msgspec.Struct, frozen=True):
    """A set of settings, at most one value per knob, sorted by knob; the empty set is the command as it
    is."""

    settings: tuple[Setting, ...] = ()

    @property
    def key(self) -> str:
        """Return the settings as text: `ids_of` reads the same settings from it."""
        return arm_key(self.settings)

    @property
    def short_name(self) -> str:
        """Shorten the key to the largest length of a folder's name."""
        return hashlib.sha256(self.key.encode()).hexdigest()[:16] if self.settings else "baseline"


BASELINE = Arm()


def arm(settings: Iterable[Setting]) -> Arm:
    """Make an arm; if a knob occurs twice, the last value counts."""
    by_knob = {setting.knob: setting for setting in settings}
    return Arm(tuple(by_knob[knob] for knob in sorted(by_knob)))


def arm_key(settings: Iterable[object]) -> str:
    """Write settings, or their texts, as the key of their arm: sorted by knob, with spaces between; "" for
    none."""
    ids = sorted(map(str, settings), key=lambda id_: (id_.partition("=")[0], id_))
    return " ".join(shlex.quote(id_) if _SPECIAL.search(id_) else id_ for id_ in ids)


@functools.cache
def ids_of(key: str) -> frozenset[str]:
    """Return the settings in the key of an arm, each as `knob=value`.

    In an older key, a word that does not begin with `knob=` continues the value before it.
    """
    if not key:
        return frozenset()
    if not _KEY.fullmatch(key):
        return frozenset(re.split(rf" (?={_BEGIN})", key))
    return frozenset(map(_unquoted, re.findall(_SETTING, key)))


def _unquoted(word: str) -> str:
    return word[1:-1].replace(_QUOTE_WITHIN, "'") if word.startswith("'") else word


@functools.cache
def canonical(key: str) -> str:
    """Return the key in its present form, in which two keys are equal if and only if their settings are."""
    return arm_key(ids_of(key))
