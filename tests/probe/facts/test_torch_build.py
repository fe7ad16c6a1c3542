from __future__ import annotations

import subprocess
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


def test_a_build_with_cuda_is_read_without_importing_it(site, tmp_path, target_python):
    env = version(site, CUDA_BUILD)
    distribution(site, "nvidia-cudnn-cu13", "9.19.0.56")
    distribution(site, "nvidia-cudnn-cu12", "9.1.0.70")
    facts = torch_build.ask(target_python, tmp_path, env)
    assert facts["torch.version"] == "2.11.0+cu130"
    assert facts["torch.cuda"] == "13.0"
    assert facts["torch.cudnn"] == "9.19.0.56"
    asks = [target_python, "-c", "import platform; print(platform.python_version())"]
    answer = subprocess.run(asks, capture_output=True, text=True)
    assert facts["python.version"] == answer.stdout.strip()
    assert {name for name in facts if not name.startswith("package.")} == set(torch_build.NAMES)
    assert not list(site.rglob("__pycache__"))


@pytest.mark.parametrize("prefix", [False, True])
def test_torch_bytecode_says_whether_modules_are_there_in_compiled_form(
    site, tmp_path, prefix, target_python
):
    module = site / "torch/_tensor.py"
    module.write_text("x = 1\n")
    env = version(site, CUDA_BUILD) | ({"PYTHONPYCACHEPREFIX": str(tmp_path / "compiled")} if prefix else {})
    first = torch_build.ask(target_python, tmp_path, env)
    assert (first["torch.bytecode"], first["torch.bytecode_writable"]) == (False, True)
    subprocess.run([target_python, "-m", "py_compile", str(module)], env=env, check=True)
    assert torch_build.ask(target_python, tmp_path, env)["torch.bytecode"] is True
    for elsewhere in (str(tmp_path / "elsewhere"), "from/here"):
        other = torch_build.ask(target_python, tmp_path, env | {"PYTHONPYCACHEPREFIX": elsewhere})
        assert (other["torch.bytecode"], other["torch.bytecode_writable"]) == (False, True)


def test_cudnn_that_is_no_package_is_unknown(site, tmp_path):
    facts = torch_build.ask(sys.executable, tmp_path, version(site, CUDA_BUILD))
    assert isinstance(facts["torch.cudnn"], Unknown)
    assert facts["torch.cuda"] == "13.0"


def test_a_build_without_cuda_has_none(site, tmp_path, target_python):
    facts = torch_build.ask(
        target_python,
        tmp_path,
        version(
            site, "__version__ = '2.13.0+cpu'\ncuda = None\nother = call()\nhip: str\nfor x in y: pass\n"
        ),
    )
    assert facts["torch.version"] == "2.13.0+cpu"
    assert facts["torch.cuda"] is None
    assert facts["torch.cudnn"] is None


def test_a_torch_that_does_not_say_its_version_is_unknown(site, tmp_path, target_python):
    facts = torch_build.ask(target_python, tmp_path, version(site, "nothing = 1\n"))
    assert isinstance(facts["torch.version"], Unknown)
    assert isinstance(facts["python.version"], str)


def test_an_interpreter_without_torch_says_so(tmp_path, target_python):
    bare = tmp_path / "bare"
    # -S and -I leave only the standard library.
    bare.write_text(f'#!/bin/sh\nexec {target_python} -I -S "$@"\n')
    bare.chmod(0o755)
    facts = torch_build.ask(str(bare), tmp_path, {})
    assert isinstance(facts["torch.version"], Unknown)
    assert "not installed" in facts["torch.version"].reason


def test_a_folder_named_torch_or_json_beside_the_command_is_not_taken_for_it(site, tmp_path, target_python):
    work = tmp_path / "work"
    (work / "torch").mkdir(parents=True)
    (work / "torch/__init__.py").touch()
    (work / "json.py").write_text("raise SystemExit(3)\n")
    facts = torch_build.ask(target_python, work, version(site, CUDA_BUILD))
    assert facts["torch.version"] == "2.11.0+cu130"


def test_torch_facts_stand_when_a_sitecustomize_prints(site, tmp_path, target_python):
    (site / "sitecustomize.py").write_text("print('hello', end='')\n")
    facts = torch_build.ask(target_python, tmp_path, version(site, CUDA_BUILD))
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


def library(site: Path, *texts: bytes) -> None:
    """A library of torch that holds these strings among others, as a linker lays them out."""
    (site / "torch/lib").mkdir()
    strings = [b"\x7fELF", b"sm_70 is no longer supported", *texts, b"usage: sm_90 or later"]
    (site / "torch/lib/libtorch_python.so").write_bytes(b"\0\0".join(strings) + b"\0")


def test_the_architectures_are_read_from_the_library(site, tmp_path, target_python):
    library(site, b"sm_75 sm_80 sm_90a compute_120")
    facts = torch_build.ask(target_python, tmp_path, version(site, CUDA_BUILD))
    assert facts["torch.arch_list"] == ["sm_75", "sm_80", "sm_90a", "compute_120"]


@pytest.mark.parametrize("texts", [[], [b"sm_75 sm_80", b"sm_90"]])
def test_a_library_that_names_none_or_several_lists_is_unknown(site, tmp_path, texts, target_python):
    library(site, *texts)
    facts = torch_build.ask(target_python, tmp_path, version(site, CUDA_BUILD))
    assert isinstance(facts["torch.arch_list"], Unknown)


def test_packages_are_told_by_version_and_absent_ones_not_at_all(site, tmp_path, target_python):
    env = version(site, CUDA_BUILD)
    distribution(site, "nvidia-nccl-cu13", "2.29.7")
    distribution(site, "opencv-python-headless", "4.10.0.84")
    distribution(site, "Flash_Attn", "2.8")
    distribution(site, "unrelated", "1")
    (site / "xformers.egg-info").mkdir()
    (site / "xformers.egg-info/PKG-INFO").write_text(
        "Metadata-Version: 2.1\nName: xformers\nVersion: 0.0.30\n"
    )
    facts = torch_build.ask(target_python, tmp_path, env)
    assert facts["torch.nccl"] == facts["package.nvidia-nccl-cu13"] == "2.29.7"
    assert facts["package.opencv-python-headless"] == "4.10.0.84"
    assert facts["package.flash-attn"] == "2.8"
    assert facts["package.xformers"] == "0.0.30"
    assert not {"package.unrelated", "package.deepspeed"} & facts.keys()


def test_the_first_of_two_packages_on_the_path_counts(site, tmp_path, target_python):
    other = tmp_path / "other"
    other.mkdir()
    distribution(site, "timm", "2")
    distribution(other, "timm", "1")
    env = version(site, CUDA_BUILD)
    env["PYTHONPATH"] += f":{other}"
    assert torch_build.ask(target_python, tmp_path, env)["package.timm"] == "2"


def importable(site: Path, body: str) -> dict[str, str]:
    env = version(site, CUDA_BUILD)
    (site / "torch/__init__.py").write_text(body)
    return env


def test_a_torch_that_is_imported_tells_what_it_carries(site, tmp_path, target_python):
    body = """
class _C:
    _cuda_getArchFlags = staticmethod(lambda: "sm_80 sm_90")
class version:
    cuda = "13.0"
class cuda:
    class nccl:
        version = staticmethod(lambda: (2, 29, 7))
class backends:
    class cudnn:
        version = staticmethod(lambda: 92000)
"""
    facts = torch_build.ask_build(target_python, tmp_path, importable(site, body))
    assert facts == {"torch.arch_list": ["sm_80", "sm_90"], "torch.nccl": "2.29.7", "torch.cudnn": "9.20.0"}


def test_a_torch_without_cuda_carries_none(site, tmp_path, target_python):
    body = "class _C: pass\nclass version:\n    cuda = None\n"
    assert torch_build.ask_build(target_python, tmp_path, importable(site, body)) == {"torch.arch_list": None}


@pytest.mark.parametrize("body", ["raise ImportError('libcudart.so.13')", "import os; os._exit(9)"])
def test_a_torch_that_cannot_be_imported_says_why(site, tmp_path, body, target_python):
    facts = torch_build.ask_build(target_python, tmp_path, importable(site, body))
    assert isinstance(facts["torch.arch_list"], Unknown)
    assert "libcudart" in facts["torch.arch_list"].reason or "exit code 9" in facts["torch.arch_list"].reason


def test_an_import_that_takes_too_long_is_not_waited_for(site, tmp_path, target_python):
    env = importable(site, "import threading; threading.Event().wait()")
    facts = torch_build.ask_build(target_python, tmp_path, env, timeout_s=0.5)
    assert facts == {"torch.arch_list": Unknown(f"{target_python} did not import torch within 0.5 s")}
