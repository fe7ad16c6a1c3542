"""Write subcommands' answers: reports or JSON on standard output, messages on stderr, exit codes of gates."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from dynotune.schema.diagnosis import SEVERITIES
from dynotune.schema.errors import UsageError, may_fail

if TYPE_CHECKING:
    import msgspec

    from dynotune.schema.diagnosis import Finding

D = TypeVar("D", bound="msgspec.Struct")


def show(report: Callable[[D], Any], document: D, json: str | None, *, soft_wrap: bool = False) -> None:
    """Print `report(document)`, without secrets, unless the JSON goes to standard output.

    If a JSON file was requested, it is written without secrets, too.
    """
    if json != "-":
        from dynotune.report import console
        from dynotune.schema.document import without_secrets

        console(soft_wrap=soft_wrap).print(report(without_secrets(document)))
    if json is not None:
        write_json(document, json)


def write_json(document: object, target: str) -> None:
    """Write `document` to the file `target`, or to standard output if `target` is `-`.

    Raises UsageError if the file cannot be written.
    """
    from dynotune.schema.document import encode

    raw = encode(document) + b"\n"
    if target == "-":
        write_bytes(raw)
        return
    from dynotune.schema import atomic

    with may_fail(f"write {target}", "Name another file with --json.", UsageError):
        atomic.write(Path(target), raw)


def exit_if_severe(findings: Iterable[Finding], fail_on: str | None) -> None:
    """Exit with 1 if a finding has the severity of `--fail-on`, or a higher one."""
    failing = SEVERITIES[: SEVERITIES.index(fail_on) + 1] if fail_on is not None else ()
    if any(finding.severity in failing for finding in findings):
        raise typer.Exit(1)


def say(text: str) -> None:
    """Write a message on stderr, separate from the answer."""
    from rich.text import Text

    from dynotune.report import console
    from dynotune.schema.redaction import redacted
    from dynotune.text import words

    console(stderr=True).print(Text(words.plain(redacted(text)), style="dim"), soft_wrap=True)


def write_bytes(raw: bytes) -> None:
    """Write UTF-8 to standard output, whatever the terminal's encoding: the output is a file for other
    programs."""
    sys.stdout.flush()
    sys.stdout.buffer.write(raw)
    sys.stdout.flush()
