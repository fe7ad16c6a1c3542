"""The workflow of this repository: what it runs exists, and the README's badge is of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[1]
(WORKFLOW,) = (ROOT / ".github" / "workflows").glob("*.yml")
JOBS = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"]
LINES = [step["run"] for job in JOBS.values() for step in job["steps"] if "run" in step]


def test_workflow_makes_targets_that_exist():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    made = [line.split()[1] for line in LINES if line.startswith("make ")]
    assert made and set(made) <= targets


def test_workflow_takes_no_text_of_others_into_its_shell():
    assert not [line for line in LINES if "${{" in line]


def test_workflow_tests_versions_that_the_package_takes():
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    versions = JOBS["test"]["strategy"]["matrix"]["python"]
    assert all(f"Python :: {version}" in pyproject for version in versions)


def test_badge_of_the_readme_is_of_the_workflow():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.count(f"actions/workflows/{WORKFLOW.name}") == 2
