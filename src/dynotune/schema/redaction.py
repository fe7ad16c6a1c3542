"""Find secrets in text that is stored or shown, and replace them.

A secret is the value of a variable, an option, a key or an address field with a telling name, a token of a
known form, or a value passed to `learn`. All functions here work on text, since commands, settings and output
all end up as text: JSON, TOML, a line for a terminal. The agent gets the same patterns in its plan. This
module uses only the standard library, since some readers of run folders can import no more.
"""

from __future__ import annotations

import functools
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dynotune.schema.setting import Setting

MARK = "@redacted"

# Words of language models that look like the end of a secret's name.
_OTHER_TOKENS = (
    "pad eos bos unk sep cls mask image special stop start end next prev first last max min per new num"
)
_NO_TOKEN = "".join(rf"(?<!{word}[_.-]token)" for word in _OTHER_TOKENS.split())
_KEYS = "access private secret auth account license signing master session encryption".split()  # noqa: SIM905
# The end of a secret's name. The beginning of the name does not matter.
_WORD = (
    rf"(?:secrets?|pass(?:word|wd|phrase)s?|credentials?|token{_NO_TOKEN}|api[_-]?key|access[_-]?key[_-]?id"
    rf"|(?:{'|'.join(_KEYS)})[_-]?key|(?<=[_.-])(?:auth|pwd|pat|pass))"
    r"(?:[_-]?(?:[0-9]{1,2}|value|json|b64|base64))?"
)
_NAME = rf"(?:[\w.-]{{0,80}}?{_WORD})"
# Switches, small numbers, placeholders, and shell substitutions are not secrets.
_NONE = (
    r"(?!@redacted|(?:\\?[\"']?\$\([^()\n]{1,400}\)"
    r"|(?-i:WORD|SECRET|TOKEN|VALUE)|[0-9]{1,3}|true|false|yes|no|on|off|none|null|auto"
    r"|@unset|\{\w{1,80}\}|\\?\$\{?\w{1,80}\}?)"
    r"(?:\\?[\"'\s,;&)\]]|$))"
)
_STRING = r"((?:[^\"\\\n]|\\[^\n])+)"
_BARE = r"('[^'\"]+'|\"[^\",:\n\]}]+\"|\\\"[^\"\\]+\\\"|[^\s\"'&,;\\]+)"

PATTERNS: tuple[str, ...] = (
    # In JSON: an option and the next word; an option with its value; a key and its value; a setting; a
    # variable.
    rf"(\"-{{1,2}}{_NAME}\",\s*\")(?!-){_NONE}{_STRING}",
    rf"(\"-{{1,2}}{_NAME}=){_NONE}{_STRING}",
    rf"({_WORD}\"\s*[:=]\s*\"){_NONE}{_STRING}",
    rf"(\"(?:knob|name)\":\s*\"{_NAME}\",\s*\"(?:value|asked)\":\s*\"){_NONE}{_STRING}",
    *(
        rf"(\"knob\":\s*\"{_NAME}\",(?:[^{{}}\"]|\"(?!knob\")){{0,1000}}?\"{field}\":\s*\"){_NONE}{_STRING}"
        for field in ("value", "found", "detail")
    ),
    # In any text: the same in the notations of shells, of Python and of people.
    rf"({_WORD}\\?[\"']\s*[:=]\s*\\?[\"']){_NONE}([^\"'\\]+)",
    rf"({_WORD}=){_NONE}{_BARE}",
    rf"(-(?<![\w.-]-){_NAME}\s+)(?!-){_NONE}{_BARE}",
    rf"({_WORD}:\s+){_NONE}([^\s\"'\\]{{0,200}}[0-9][^\s\"'\\]{{3,}})",
    r"(authorization:\s*(?:bearer\s+|basic\s+|token\s+)?)([^\s\"'\\,]+)",
    r"(\bbearer\s+)([\w.~+/=-]{8,})",
    # Addresses.
    r"(://)(?!git@|@redacted@)([^/@\s\"'\\]+)(?=@)",
    rf"([?&](?:sig|signature|key|code|x-[\w-]{{0,40}}(?:signature|credential))=){_NONE}([^&#\s\"'\\]+)",
    # Tokens of known forms.
    r"(\b)((?:hf_|gh[pousr]_|github_pat_|glpat-|(?<![a-z])sk-|xox[abprs]-|AKIA|AIza)[\w-]{16,})",
    r"((?<![\w-]))(eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)",
    r"(-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----)([^\"-]+)",
)
"""Group 1 is kept, group 2 is the secret, which stays within its JSON string. Case is ignored, a dot matches
anything. Matching takes time linear in the text, whatever it contains: before a secret only white space is
repeated without a bound, and the begin of a secret is not scanned again by the next attempt."""

_END = r"(?![a-z]|[_-][a-z]{2}|[0-9]{3})|[_-]?(?:value|json|b64|base|id)"
_HINTS: dict[str, str] = {
    "secret": "",
    "credential": "",
    "token": _END,
    "key": "|".join(
        [r"(?<=[_-]key)", "(?<=apikey)", "(?<=private key)", *(rf"(?<={word}key)" for word in _KEYS)]
    ),
    "pass": rf"w|ph|(?<=[_.-]pass)(?:{_END})",
    "pwd": rf"(?<=[_.-]pwd)(?:{_END})",
    "pat": rf"(?<=[_.-]pat)(?:{_END})|(?<=glpat)-|(?<=github_pat)_",
    "auth": rf"orization|(?<=[_.-]auth)(?:{_END})",
    "bearer": "",
    "://": r"[^/\s]*@",
    **dict.fromkeys("?&", "(?:sig|key|code|x-)"),
    **dict.fromkeys(("hf_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "xox", "akia", "aiza", "eyj"), ""),
    "sk-": "(?<![a-z]sk-)",
}
HINTS: tuple[str, ...] = tuple(f"{re.escape(literal)}(?:{beside})" for literal, beside in _HINTS.items())
"""Hints: a lower-case text without any of these strings contains no secret that the patterns find."""
# Characters around a hint: the longest name, and the longest secret that may contain line ends, a private
# key.
_BEFORE, _AFTER = 200, 4000
_CUT = re.compile(r"(?<!\\)(?:\\\\)*\"|\n")

# Shorter or plainer values also occur with other meanings, so they are not redacted everywhere.
_TELLING = re.compile(r"(?![/~.]|[A-Za-z]?[a-z]*$|[0-9.]*$).{6,}", re.DOTALL)
_known: set[str] = set()


@functools.cache
def _patterns() -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(pattern, re.IGNORECASE | re.DOTALL) for pattern in PATTERNS)


def is_name(name: str) -> bool:
    """Return whether the value of a variable, an option or a key with this name is a secret."""
    return re.fullmatch(_NAME, name.lstrip("-"), re.IGNORECASE) is not None


def learn(env: Mapping[str, str], command: Sequence[str] = (), settings: Iterable[Setting] = ()) -> None:
    """Remember the secrets among the values, and from now on redact these secrets wherever a program prints
    them."""
    found = {value for name, value in env.items() if is_name(name)}
    found |= {str(setting.value) for setting in settings if is_name(setting.knob)}
    text = json.dumps(list(command), ensure_ascii=False)
    for begin, end in _suspicious(text):
        found |= {match[2] for pattern in _patterns() for match in pattern.finditer(text, begin, end)}
    _known.update(value for value in found if _TELLING.fullmatch(value) and MARK not in value)


def redacted(text: str) -> str:
    """Return `text` with `MARK` in place of every secret. Redacted text stays as it is."""
    for value in _known:
        # As it is, and as a part of a word that is quoted for a shell; each also as JSON writes it.
        for form in dict.fromkeys((value, shlex.quote(f" {value}")[2:-1])):
            for written in (form, json.dumps(form, ensure_ascii=False)[1:-1]):
                text = text.replace(written, MARK)
    # A mark may complete what an earlier pattern matches. Each round with a change leaves less text besides
    # marks.
    while (found := _redacted_once(text)) != text:
        text = found
    return text


def _redacted_once(text: str) -> str:
    parts, done = [], 0
    for begin, end in _suspicious(text):
        part = text[begin:end]
        for pattern in _patterns():
            part = pattern.sub(rf"\g<1>{MARK}", part)
        parts += [text[done:begin], part]
        done = end
    return "".join([*parts, text[done:]])


def _suspicious(text: str) -> Iterator[tuple[int, int]]:
    """Yield stretches around hints, cut between secrets, so that megabytes without a hint take
    milliseconds."""
    lowered = text.lower()
    if len(lowered) != len(text):  # a few letters become several in lower case
        yield 0, len(text)
        return
    begin = end = 0
    for first, last in _hinted(lowered):
        if first - _BEFORE > end:
            if end:
                yield begin, end
            begin = max(end, *(lowered.rfind(sign, end, first - _BEFORE) for sign in '"\n'))
        if last + _AFTER > end:
            cut = _CUT.search(text, min(last + _AFTER, len(text)))
            end = cut.end() if cut else len(text)
    if end:
        yield begin, end


def _hinted(lowered: str) -> list[tuple[int, int]]:
    """Return where hints begin and end in the text. Searching for plain words is far faster than matching
    patterns."""
    found = [
        re.finditer(hint, lowered) for literal, hint in zip(_HINTS, HINTS, strict=True) if literal in lowered
    ]
    return sorted(match.span() for matches in found for match in matches)


def words(command: Sequence[str]) -> list[str]:
    """Return the words of a command, redacted."""
    found: list[str] = json.loads(redacted(json.dumps(list(command), ensure_ascii=False)))
    return found
