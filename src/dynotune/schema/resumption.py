"""Complete a stored document in order to resume its work: the user types again what no record holds."""

import json
import re
from collections import Counter
from typing import TypeVar

import msgspec

from dynotune.schema import redaction
from dynotune.schema.document import json_bytes, json_text, parse
from dynotune.schema.errors import UsageError
from dynotune.schema.run import RunSpec
from dynotune.schema.setting import Setting

T = TypeVar("T", bound=msgspec.Struct)
_REDACTED = re.compile(
    rf'"knob":"([^"]+)","value":"{redaction.MARK}"|((?:env|arg)\.[^\s"=]+)={redaction.MARK}',
)


def completed(document: T, now: RunSpec, *arms: Setting) -> T:
    """Return the document with the secrets that the user typed again, because secrets are not stored.

    Args:
        document: a document whose field `run` is a RunSpec.
        now: the command and settings that the user typed now; may be empty.
        arms: the sets of settings that the document compares with the settings of its run.

    Raises:
        UsageError: a secret is missing, or two secret values of one setting are, so that their arms are
            indistinguishable.
    """
    text = json_text(document, 0)
    if redaction.MARK not in text:
        return document
    begun: RunSpec = msgspec.structs.asdict(document)["run"]
    again = "Leave --resume out to begin a new one."
    counted = Counter(one.knob for one in (*begun.settings, *arms) if one.value == redaction.MARK)
    if twice := [knob for knob, number in counted.items() if number > 1]:
        raise UsageError(f"Two values of {twice[0]} were secrets, which no record holds.", hint=again)
    for setting in now.settings:
        value = json.dumps(str(setting.value), ensure_ascii=False)[1:-1]
        for before in (f'"knob":"{setting.knob}","value":"', f"{setting.knob}="):
            text = text.replace(before + redaction.MARK, before + value)
    missing = sorted({one or other for one, other in _REDACTED.findall(text)})
    filled = parse(json_bytes(text), type(document))
    run: RunSpec = msgspec.structs.asdict(filled)["run"]
    if any(redaction.MARK in word for word in run.command):
        if now.command and redaction.words(now.command) != run.command:
            raise UsageError("It was begun with another command.", hint=again)
        missing += [] if now.command else ["the command"]
        run = msgspec.structs.replace(run, command=now.command)
    if missing:
        needed = " and ".join(missing)
        how = "settings as when it was begun, the command after two dashes"
        raise UsageError(
            f"No record holds secrets, and some are needed to go on: those of {needed}.",
            hint=f"Type them again beside --resume: {how}.",
        )
    if redaction.MARK in json_text(run):
        raise UsageError("A secret is missing that was part of an option, which no record holds.", hint=again)
    return msgspec.structs.replace(filled, run=run)
