from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dynotune.probe import torch_build
from dynotune.schema.facts import Unknown


@pytest.fixture
def site(tmp_path):
    """A folder on PYTHONPATH with a torch that must not be imported."""
    folder = tmp_path / "site"
    (folder / "torch").mkdir(parents=True)
    (folder / "torch/__init__.py").write_text("raise SystemExit('imported')\n")
    return folder


def version(site: Path, text: str) -> dict[str, str]:
    (site / "torch/version.py").write_text(text)
    return {"PYTHONPATH": str(site)}


CUDA_BUILD = "from typing import Optional\n__version__ = '2.11.0+cu130'\ncuda: Optional[str] = '13.0'\n"


def distribution(site: Path, name: str, number: str) -> None:
    folder = site / f"{name.replace('-', '_')}-{number}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n")


def test_a_build_with_cuda_is_read_without_importing_it(site, tmp_path):
    env = version(site, CUDA_BUILD)
    distribution(site, "nvidia-cudnn-cu13", "9.19.0.56")
    distribution(site, "nvidia-cudnn-cu12", "9.1.0.70")
    facts = torch_build.ask(sys.executable, tmp_path, env)
    assert facts["torch.version"] == "2.11.0+cu130"
    assert facts["torch.cuda"] == "13.0"
    assert facts["torch.cudnn"] == "9.19.0.56"
    assert facts["python.version"] == ".".join(map(str, sys.version_info[:3]))
    assert {name for name in facts if not name.startswith("package.")} == set(torch_build.NAMES)
    assert not list(site.rglob("__pycache__"))


def test_cudnn_that_is_no_package_is_unknown(site, tmp_path):
    facts = torch_build.ask(sys.executable, tmp_path, version(site, CUDA_BUILD))
    assert isinstance(facts["torch.cudnn"], Unknown)
    assert facts["torch.cuda"] == "13.0"


def test_a_build_without_cuda_has_none(site, tmp_path):
    facts = torch_build.ask(
        sys.executable,
        tmp_path,
        version(site, "__version__ = '2.13.0+cpu'\ncuda = None\nother = call()\nhip: str\nfor x in y: pass\n"),
    )
    assert facts["torch.version"] == "2.13.0+cpu"
    assert facts["torch.cuda"] is None
    assert facts["torch.cudnn"] is None


def test_a_torch_that_does_not_say_its_version_is_unknown(site, tmp_path):
    facts = torch_build.ask(sys.executable, tmp_path, version(site, "nothing = 1\n"))
    assert isinstance(facts["torch.version"], Unknown)
    assert isinstance(facts["python.version"], str)


def test_an_interpreter_without_torch_says_so(tmp_path):
    bare = tmp_path / "bare"
    # -S and -I leave only the standard library.
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    facts = torch_build.ask(str(bare), tmp_path, {})
    assert isinstance(facts["torch.version"], Unknown)
    assert "not installed" in facts["torch.version"].reason


def test_a_folder_named_torch_or_json_beside_the_command_is_not_taken_for_it(site, tmp_path):
    work = tmp_path / "work"
    (work / "torch").mkdir(parents=True)
    (work / "torch/__init__.py").touch()
    (work / "json.py").write_text("raise SystemExit(3)\n")
    facts = torch_build.ask(sys.executable, work, version(site, CUDA_BUILD))
    assert facts["torch.version"] == "2.11.0+cu130"


def test_what_a_sitecustomize_prints_does_not_matter(site, tmp_path):
    (site / "sitecustomize.py").write_text("print('hello', end='')\n")
    facts = torch_build.ask(sys.executable, tmp_path, version(site, CUDA_BUILD))
    assert facts["torch.version"] == "2.11.0+cu130"


@pytest.mark.parametrize("body", ["exit 3", "echo boom >&2; exit 1", "echo no facts", "sleep 600; exit 0"])
def test_an_interpreter_that_does_not_answer_leaves_everything_unknown(body, tmp_path):
    broken = tmp_path / "python"
    broken.write_text(f"#!/bin/sh\n{body}\n")
    broken.chmod(0o755)
    facts = torch_build.ask(str(broken), tmp_path, {"PATH": "/usr/bin:/bin"}, timeout_s=5)
    assert set(facts) == set(torch_build.NAMES)
    assert all(isinstance(value, Unknown) for value in facts.values())


def test_a_missing_interpreter_and_an_unknown_one_are_unknown(tmp_path):
    assert isinstance(torch_build.ask(str(tmp_path / "none"), tmp_path, {})["torch.version"], Unknown)
    assert torch_build.ask(Unknown("a shell"), tmp_path, {})["torch.version"] == Unknown("a shell")
