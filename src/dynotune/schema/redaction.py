"""Secrets in what is kept and shown: found in text, and left out of it.

A secret is the value of a variable, an option, a key or a part of an address whose name says so, a token of a known
form, or a value that `learn` was told. Everything here works on text, since commands, settings and output all end up
as text: JSON, TOML, a line for a terminal. The agent is handed the same patterns in its plan. Run folders are read
where only the standard library can be imported.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dynotune.schema.setting import Setting

__all__ = ["HINT", "MARK", "PATTERNS", "is_name", "learn", "redacted", "words"]

MARK = "@redacted"

# Words of language models that end like the name of a secret.
_OTHER_TOKENS = "pad eos bos unk sep cls mask image special stop start end next prev first last max min per new num"
_NO_TOKEN = "".join(rf"(?<!{word}[_.-])" for word in _OTHER_TOKENS.split())
_WORD = (
    rf"(?:secrets?|pass(?:word|wd|phrase)s?|credentials?|{_NO_TOKEN}token|api[_-]?key|access[_-]?key(?:[_-]?id)?"
    r"|(?:private|secret|auth|account|license|signing|master|session|encryption)[_-]?key"
    r"|(?<=[_.-])(?:auth|pwd|pat|pass))"
)
_NAME = rf"(?:[\w.-]{{0,80}}?{_WORD}(?:[_-]?(?:[0-9]{{1,2}}|value|json|b64|base64))?)"
# Switches, small numbers, placeholders, and what a shell fills in, are no secrets.
_NONE = (
    r"(?!@redacted|(?:[0-9]{1,3}|true|false|yes|no|on|off|none|null|auto|@unset|\{\w+\}|\\?\$\{?\w+\}?)"
    r"(?:\\?[\"'\s,;&)\]]|$))"
)
_STRING = r"((?:[^\"\\]|\\.)+)(?=\")"
_BARE = r"('[^'\"]+'|\"[^\",:\n\]}]+\"|\\\"[^\"\\]+\\\"|[^\s\"'&,;\\]+)"

PATTERNS: tuple[str, ...] = (
    # In JSON: an option and the next word; an option with its value; a key and its value; a setting; a variable.
    rf"(\"-{{1,2}}{_NAME}\",\s*\")(?!-){_NONE}{_STRING}",
    rf"(\"-{{1,2}}{_NAME}=){_NONE}{_STRING}",
    rf"(\"{_NAME}\"\s*[:=]\s*\"){_NONE}{_STRING}",
    rf"(\"(?:knob|name)\":\s*\"{_NAME}\",\s*\"(?:value|asked)\":\s*\"){_NONE}{_STRING}",
    *(
        rf"(\"knob\":\s*\"{_NAME}\",[^{{}}]{{0,1000}}?\"{field}\":\s*\"){_NONE}{_STRING}"
        for field in ("value", "found", "detail")
    ),
    # In any text: the same as a shell, Python and people write it.
    rf"((?<![\w.-]){_NAME}\\?[\"']\s*[:=]\s*\\?[\"']){_NONE}([^\"'\\]+)",
    rf"((?<![\w.-])-{{0,2}}{_NAME}=){_NONE}{_BARE}",
    rf"((?<![\w.-])-{{1,2}}{_NAME}\s+)(?!-){_NONE}{_BARE}",
    rf"((?<![\w.-]){_NAME}:\s+){_NONE}([^\s\"'\\]{{0,200}}[0-9][^\s\"'\\]{{3,}})",
    r"(authorization:\s*(?:bearer\s+|basic\s+|token\s+)?)([^\s\"'\\,]+)",
    r"(\bbearer\s+)([\w.~+/=-]{8,})",
    # Addresses.
    r"(://)(?!git@|@redacted@)([^/@\s\"'\\]+)(?=@)",
    rf"([?&](?:{_NAME}|sig|signature|key|code|x-[\w-]{{0,40}}(?:signature|credential))=){_NONE}([^&#\s\"'\\]+)",
    # Tokens that tell by their form.
    r"(\b)((?:hf_|gh[pousr]_|github_pat_|glpat-|(?<![a-z])sk-|xox[abprs]-|AKIA|AIza)[\w-]{16,})",
    r"(\b)(eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)",
    r"(-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----)([^\"-]+)",
)
"""Group 1 stays, group 2 is the secret, which never leaves its string of JSON. Case is ignored, a dot is anything."""

HINT = (
    r"token(?![a-z]|[_-][a-z]{2})|token[_-](?:value|json|b64|base)|secret|passw|passph|[_.-]pass(?![a-z])|credential"
    r"|(?:api|access|private|auth|account|license|signing|master|session|encryption)[_-]?key|[_.-](?:auth|pwd|pat)(?![a-z])"
    r"|authorization|bearer|://[^/\s]*@|[?&](?:sig|key|code|x-)|hf_|gh[pousr]_|glpat-|(?<![a-z])sk-|xox[abprs]-|akia|aiza"
    r"|eyj|private key"
)
"""Text in lower case in which this is not found holds no secret that the patterns find."""
_BEFORE, _AFTER = 200, 1000

# Shorter or plainer values stand for themselves elsewhere, too.
_TELLING = re.compile(r"(?![/~.]|[A-Za-z]?[a-z]*$|[0-9.]*$).{6,}", re.DOTALL)
_known: set[str] = set()


@functools.cache
def _patterns() -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(pattern, re.IGNORECASE | re.DOTALL) for pattern in PATTERNS)


@functools.cache
def _named() -> re.Pattern[str]:
    return re.compile(_NAME, re.IGNORECASE)


@functools.cache
def _hint() -> re.Pattern[str]:
    return re.compile(HINT)


def is_name(name: str) -> bool:
    """Whether a variable, an option or a key of that name holds a secret."""
    return _named().fullmatch(name.lstrip("-")) is not None


def learn(env: Mapping[str, str], command: Sequence[str] = (), settings: Iterable[Setting] = ()) -> None:
    """Take secrets out of whatever is kept or shown from now on, wherever a program may print them."""
    found = {value for name, value in env.items() if is_name(name)}
    found |= {str(setting.value) for setting in settings if is_name(setting.knob)}
    text = json.dumps(list(command), ensure_ascii=False)
    if _hint().search(text.lower()):
        found |= {match[2] for pattern in _patterns() for match in pattern.finditer(text)}
    _known.update(value for value in found if _TELLING.fullmatch(value) and MARK not in value)


def redacted(text: str) -> str:
    """`text` with `MARK` in place of every secret. What was redacted before stays as it is."""
    for value in _known:
        if value in text:
            text = text.replace(value, MARK)
        escaped = json.dumps(value, ensure_ascii=False)[1:-1]
        if escaped in text:
            text = text.replace(escaped, MARK)
    parts, done = [], 0
    for begin, end in _suspicious(text):
        part = text[begin:end]
        for pattern in _patterns():
            part = pattern.sub(rf"\g<1>{MARK}", part)
        parts += [text[done:begin], part]
        done = end
    return "".join([*parts, text[done:]])


def _suspicious(text: str) -> Iterator[tuple[int, int]]:
    """Stretches of whole lines around each hint, so that megabytes without any take milliseconds."""
    end = 0
    lowered = text.lower()
    if len(lowered) != len(text):  # a few letters have more when they are small
        yield 0, len(text)
        return
    begin = -1
    for match in _hint().finditer(lowered):
        if match.end() > end:
            if begin >= 0 and match.start() - _BEFORE > end:
                yield begin, end
                begin = -1
            if begin < 0:
                begin = max(end, lowered.rfind("\n", 0, max(0, match.start() - _BEFORE)) + 1)
            line_end = lowered.find("\n", match.end() + _AFTER)
            end = len(text) if line_end < 0 else line_end
    if begin >= 0:
        yield begin, end


def words(command: Sequence[str]) -> list[str]:
    """The words of a command, redacted."""
    found: list[str] = json.loads(redacted(json.dumps(list(command), ensure_ascii=False)))
    return found
