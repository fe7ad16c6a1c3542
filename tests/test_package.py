"""What is published: it says what it is, builds, holds what it needs, and runs where there is no torch."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import dynotune

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DATA = [
    path
    for path in (ROOT / "src" / "dynotune").rglob("*")
    if path.is_file() and path.suffix not in (".py", ".pyc")
]
EXAMPLES = {"dynotune/examples/train_images.py", "dynotune/examples/demo/photographs.py"}


def test_the_version_is_the_same_wherever_it_stands():
    changed = re.search(r"^## \[(\d\S*)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    assert changed and cited
    assert dynotune.__version__ == changed[1] == cited[1]


def test_a_tag_of_this_commit_names_the_version():
    asked = subprocess.run(
        ["git", "tag", "--points-at", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    tags = [tag for tag in asked.stdout.split() if re.fullmatch(r"v\d\S*", tag)]
    if not tags:
        pytest.skip("this commit has no tag of a version")
    assert tags == [f"v{dynotune.__version__}"]


def test_the_pythons_that_are_named_are_those_that_are_allowed():
    named = [
        line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", line)
    ]
    lowest, beyond = re.findall(r"3\.(\d+)", PROJECT["requires-python"])
    assert named == [f"3.{minor}" for minor in range(int(lowest), int(beyond))]
    assert not any(re.match(r"torch\b", needed) for needed in PROJECT["dependencies"])


@pytest.mark.parametrize(
    "form", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.stem
)
def test_the_forms_of_issues_are_whole(form):
    yaml = pytest.importorskip("yaml")
    found = yaml.safe_load(form.read_text(encoding="utf-8"))
    if form.stem != "config":
        assert found["name"] and found["description"]
        for part in found["body"]:
            assert part["type"] in ("textarea", "input") and part["id"] and part["attributes"]["label"]


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with the sdist and the wheel, built without network by a hatchling of its own."""
    folder = tmp_path_factory.mktemp("built")
    venv.create(folder / "builder", with_pip=True)
    python = folder / "builder" / "bin" / "python"
    got = subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "hatchling>=1.27"], capture_output=True, text=True
    )
    if got.returncode:
        pytest.skip(f"hatchling cannot be installed here: {got.stderr.strip().splitlines()[-1]}")
    env = {**os.environ, "PIP_NO_INDEX": "1", "no_proxy": "", "https_proxy": "http://127.0.0.1:9"}
    subprocess.run([python, "-m", "hatchling", "build", "-d", folder / "dist"], cwd=ROOT, env=env, check=True)
    return folder / "dist"


@pytest.mark.long
def test_the_wheel_and_the_sdist_hold_what_they_need(built):
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as opened:
        inside = set(opened.namelist())
    needed = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "dynotune").rglob("*.py")}
    needed |= {str(path.relative_to(ROOT / "src")) for path in DATA} | EXAMPLES
    assert needed - inside == set()
    assert {name.partition("/")[0] for name in inside} == {
        "dynotune",
        f"dynotune-{dynotune.__version__}.dist-info",
    }
    with tarfile.open(sdist) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "src/dynotune/claims/ledger.toml",
    } <= names


@pytest.mark.long
def test_package_runs_from_an_environment_of_its_own_without_torch(built, tmp_path):
    (wheel,) = built.glob("*.whl")
    venv.create(tmp_path / "bare", with_pip=True)
    binaries = tmp_path / "bare" / "bin"
    got = subprocess.run([binaries / "pip", "install", "--quiet", wheel], capture_output=True, text=True)
    if got.returncode:
        pytest.skip(f"its dependencies cannot be installed here: {got.stderr.strip().splitlines()[-1]}")
    assert subprocess.run([binaries / "python", "-c", "import torch"], capture_output=True).returncode

    def answers(*words: str) -> str:
        env = {"PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}", "HOME": str(tmp_path), "NO_COLOR": "1"}
        done = subprocess.run(
            [binaries / "dynotune", *words], cwd=tmp_path, env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert answers("--version").split() == ["dynotune", dynotune.__version__]
    assert json.loads(answers("doctor", "--json", "-"))["facts"]["host.cpu"]
    assert "dynotune" in answers("mcp", "--skill")
    assert "cublas" in answers("explain", "cublas-env-regex").lower()
    assert answers("claims", "list") and answers("knobs") and answers("demo", "--help")
    # A program of another environment, which has torch and knows nothing of dynotune.
    (tmp_path / "train.py").write_text((ROOT / "examples" / "train_small.py").read_text(encoding="utf-8"))
    found = answers(
        "diagnose", "--steps", "10", "--warmup", "3", "--json", "-", "--", sys.executable, "train.py"
    )
    assert json.loads(found)["command"][1:] == ["train.py"]
