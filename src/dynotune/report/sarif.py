"""Write findings as SARIF 2.1.0, which editors and code hosts show at the line that a finding names.

https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import msgspec

import dynotune
from dynotune.report.places import prose, source_line
from dynotune.schema.diagnosis import Finding
from dynotune.schema.document import without_secrets
from dynotune.schema.facts import Unknown
from dynotune.text import words

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LEVELS = {"high": "error", "medium": "warning", "low": "note"}


def as_sarif(findings: Sequence[Finding]) -> bytes:
    """Write a log of one run; a finding without a line has no location.

    Paths stay as the program had them: relative to the folder in which the command ran.
    """
    found = [without_secrets(finding) for finding in findings]
    rules = sorted({finding.id for finding in found})
    driver = {"name": "dynotune", "version": dynotune.__version__, "rules": [{"id": id_} for id_ in rules]}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_result(finding, rules) for finding in found],
    }
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return msgspec.json.format(msgspec.json.encode(log)) + b"\n"


def _result(finding: Finding, rules: Sequence[str]) -> dict[str, Any]:
    share = "" if isinstance(finding.share, Unknown) else f" Up to {words.share(finding.share)} of a step."
    text = " ".join(filter(None, [f"{prose(finding.claim)}{share}", prose(finding.remedy)]))
    result: dict[str, Any] = {
        "ruleId": finding.id,
        "ruleIndex": rules.index(finding.id),
        "level": LEVELS[finding.severity],
        "message": {"text": text},
    }
    if (place := source_line(finding.where.function)) is not None:
        path, line, function = place
        physical = {"artifactLocation": {"uri": _uri(path)}, "region": {"startLine": max(line, 1)}}
        logical = [{"fullyQualifiedName": words.plain(function)}]
        result["locations"] = [{"physicalLocation": physical, "logicalLocations": logical}]
    return result


def _uri(path: str) -> str:
    """Write a path as a URI, of the bytes that its name has: not every file name is UTF-8."""
    try:
        name = path.encode(errors="surrogateescape")
    except UnicodeEncodeError:  # half of a surrogate pair, from a record that somebody wrote
        name = path.encode(errors="replace")
    return ("file://" if path.startswith("/") else "") + quote(name)
