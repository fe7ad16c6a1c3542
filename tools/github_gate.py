"""Run the gate of `action.yml`: compare, perhaps diagnose, then write a summary, annotations and outputs.

Standard library only: the runner's own python3 starts it. Inputs come as variables, never as a script's text.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

LEVELS = {"error": "error", "warning": "warning", "note": "notice"}
MOST_ANNOTATIONS = 10
"""GitHub shows ten of each level for one step."""


def words(name: str) -> list[str]:
    """Split an input as a shell would: by spaces and lines, and quotes hold together."""
    try:
        return shlex.split(os.environ.get(name, ""))
    except ValueError as error:
        sys.exit(f"::error title=dynotune::The input {name.lower()} cannot be split into words: {error}")


def escaped(text: str, *, is_property: bool = False) -> str:
    """Escape text for a workflow command, so that no text of others ends it or begins another."""
    for sign, code in (
        ("%", "%25"),
        ("\r", "%0D"),
        ("\n", "%0A"),
        *([(":", "%3A"), (",", "%2C")] * is_property),
    ):
        text = text.replace(sign, code)
    return text


def annotate(level: str, title: str, text: str, *, file: str = "", line: int = 0) -> None:
    place = {"file": file, "line": str(line)} if file else {}
    about = ",".join(
        f"{name}={escaped(value, is_property=True)}" for name, value in {**place, "title": title}.items()
    )
    print(f"::{level} {about}::{escaped(text)}", flush=True)


def append(name: str, text: str) -> None:
    with Path(os.environ[name]).open("a", encoding="utf-8") as file:
        file.write(text)


def report(document: Path, *options: str) -> str:
    """Return the report of a document on standard output; "" if it cannot be shown."""
    found = subprocess.run(["dynotune", "report", str(document), *options], capture_output=True, text=True)
    return found.stdout if found.returncode == 0 else ""


def compared(document: Path, command: list[str]) -> int:
    """Compare, tell the answer, and return the exit code."""
    options = words("OPTIONS")
    for setting in words("BASELINE"):
        options += ["--baseline", setting]
    if os.environ["FAIL_ON"] != "never":
        options += ["--fail-on", os.environ["FAIL_ON"]]
    gate = [
        "compare",
        *words("CANDIDATE"),
        "--budget",
        os.environ["BUDGET"],
        "--json",
        str(document),
        *options,
    ]
    status = subprocess.run(["dynotune", *gate, "--", *command]).returncode
    if document.exists() and document.stat().st_size:
        env = {**os.environ, "COLUMNS": "1000", "NO_COLOR": "1"}
        shown = subprocess.run(
            ["dynotune", "report", str(document)], env=env, capture_output=True, text=True
        ).stdout
        verdicts = [
            line.removeprefix("verdict").strip(": ")
            for line in shown.splitlines()
            if line.startswith("verdict")
        ]
        verdict = verdicts[-1] if verdicts else "no verdict"
        append("GITHUB_STEP_SUMMARY", report(document, "--markdown", "-"))
        append("GITHUB_OUTPUT", f"verdict={verdict}\njson={document}\n")
        annotate("error" if status else "notice", "dynotune", verdict)
    return status


def diagnosed(document: Path, command: list[str]) -> None:
    """Diagnose the command, and annotate the lines that findings name. What fails here fails no gate."""
    log = document.with_suffix(".sarif")
    done = subprocess.run(["dynotune", "diagnose", "--json", str(document), "--", *command])
    if done.returncode or not document.exists():
        return
    append("GITHUB_STEP_SUMMARY", "\n" + report(document, "--markdown", "-", "--sarif", str(log)))
    if not log.exists():
        return
    found = json.loads(log.read_text(encoding="utf-8"))
    results = [result for result in found["runs"][0]["results"] if "locations" in result]
    for result in results:
        artifact = result["locations"][0]["physicalLocation"]["artifactLocation"]
        file = from_checkout(unquote(urlsplit(artifact["uri"]).path))
        if not file.startswith("/"):  # GitHub knows paths of the repository alone, not of a working-directory
            artifact["uri"] = quote(file)
    log.write_text(json.dumps(found), encoding="utf-8")
    append("GITHUB_OUTPUT", f"sarif={log}\n")
    for result in results[:MOST_ANNOTATIONS]:
        place = result["locations"][0]["physicalLocation"]
        file = unquote(urlsplit(place["artifactLocation"]["uri"]).path)
        level, line = LEVELS[result["level"]], place["region"]["startLine"]
        annotate(
            level,
            f"dynotune: {result['ruleId']}",
            result["message"]["text"],
            file=file,
            line=line,
        )


def from_checkout(file: str) -> str:
    """Return a path relative to the repository, as GitHub wants it; of a file elsewhere, the path itself."""
    checkout = Path(os.environ.get("GITHUB_WORKSPACE", "."))
    absolute = Path.cwd() / file
    return str(absolute.relative_to(checkout) if absolute.is_relative_to(checkout) else absolute)


def main() -> int:
    # A folder of its own: other steps, and what a shared runner left, have names in RUNNER_TEMP, too.
    folder = Path(tempfile.mkdtemp(prefix="dynotune-", dir=os.environ["RUNNER_TEMP"]))
    comparison, diagnosis = folder / "comparison.json", folder / "diagnosis.json"
    # A shell takes the command, as the user would: it may have variables, && and quotes.
    command = ["bash", "-c", os.environ["COMMAND"]]
    status = compared(comparison, command)
    if os.environ.get("DIAGNOSE") == "true":
        diagnosed(diagnosis, command)
    return status


if __name__ == "__main__":
    sys.exit(main())
