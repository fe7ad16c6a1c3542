"""Findings as editors and code hosts read them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dynotune.report import as_sarif, as_text, on_terminal
from dynotune.schema.diagnosis import Finding
from dynotune.schema.trace_summary import Place

from .answers import diagnosis


def run_of(findings: list[Finding]) -> dict[str, Any]:
    log = json.loads(as_sarif(findings))
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    return run


def test_sarif_has_the_line_and_the_level_of_a_finding_when_it_names_a_place():
    first, second = run_of(diagnosis().findings)["results"]
    place = first["locations"][0]["physicalLocation"]
    assert (place["artifactLocation"]["uri"], place["region"]) == (
        "file:///home/me/train.py",
        {"startLine": 31},
    )
    assert (first["ruleId"], first["level"]) == ("num-workers-zero", "error")
    assert first["message"]["text"].startswith(
        "Batches are made in the training process. Up to 61% of a step. Let"
    )
    assert second["level"] == "note" and "locations" not in second


@pytest.mark.parametrize(
    ("name", "uri"), [("\udcff.py", "%FF.py"), ("\ud800.py", "%3F.py"), ("/a b", "file:///a%20b")]
)
def test_sarif_names_a_file_by_its_bytes_when_its_name_is_no_utf8(name, uri):
    finding = msgspec.structs.replace(diagnosis().findings[0], where=Place(function=f"{name}(3): step"))
    place = run_of([finding])["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == uri


def test_sarif_keeps_a_relative_path_when_the_program_had_one():
    (finding,) = diagnosis().findings[:1]
    changed = msgspec.structs.replace(finding, where=Place("my train.py(3): f"))
    (result,) = run_of([changed])["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "my%20train.py"


@pytest.mark.parametrize("findings", [[], diagnosis().findings * 2])
def test_sarif_lists_each_rule_once_and_results_point_at_theirs(findings):
    run = run_of(findings)
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert len(rules) == len(set(rules))
    assert [rules[result["ruleIndex"]] for result in run["results"]] == [finding.id for finding in findings]


def test_problem_matcher_of_the_guide_finds_each_place_that_a_report_names():
    """Editors read what `diagnose --plain` prints, by the patterns of the guide."""
    guide = (Path(__file__).parents[2] / "docs/guides/editors.md").read_text(encoding="utf-8")
    (task,) = json.loads(re.findall(r"```json\n(.*?)```", guide, re.DOTALL)[0])["tasks"]
    patterns = [re.compile(pattern["regexp"]) for pattern in task["problemMatcher"]["pattern"]]
    lines = as_text(on_terminal(diagnosis()), width=400).splitlines()
    found = []
    for at in range(len(lines) - 2):
        matches = [pattern.search(line) for pattern, line in zip(patterns, lines[at : at + 3], strict=True)]
        if all(matches):
            found.append(tuple(group for match in matches for group in match.groups()))
    assert found == [
        ("high", "num-workers-zero", "Batches are made in the training process.", "/home/me/train.py", "31")
    ]
