from __future__ import annotations

import os
import sys
import threading

import msgspec
import pytest

from dynotune.probe import gpu, machine, torch_build
from dynotune.probe.facts import host_memory, host_processors
from dynotune.probe.facts.machine import HOST_NAMES
from dynotune.schema.facts import Facts, Unknown

ALWAYS = {*gpu.NAMES, *HOST_NAMES, *host_memory.NAMES, *host_processors.NAMES, *torch_build.NAMES}


def test_this_machine_answers_every_name():
    facts = machine(os.environ, python=sys.executable, deadline_s=60)
    assert set(facts) >= ALWAYS
    assert facts["python.executable"] == sys.executable
    assert facts["env.CUDA_VISIBLE_DEVICES"] == os.environ.get("CUDA_VISIBLE_DEVICES")
    assert {"torch.driver_ok", "torch.runs_natively"} <= set(facts)


def test_all_of_it_can_be_written_down_and_read_back(fake_nvml, h200):
    facts = machine(os.environ, python=sys.executable, nvml=fake_nvml(h200, h200), deadline_s=60)
    assert msgspec.json.decode(msgspec.json.encode(facts), type=Facts) == facts


def test_an_empty_machine_is_unknown_and_never_an_exception(root, fake_nvml):
    options = {"root": root.path, "dev": root.path / "dev", "affinity": [0], "deadline_s": 60}
    facts = machine({}, python=Unknown("a shell"), nvml=fake_nvml(init_error=9), **options)
    assert set(facts) >= ALWAYS
    assert facts["torch.version"] == Unknown("a shell")
    assert isinstance(facts["gpu.name"], Unknown)
    assert isinstance(facts["host.cpu"], Unknown)


def test_a_driver_that_hangs_is_unknown_and_the_rest_stands(fake_nvml, h200):
    never = threading.Event()

    class Hanging(fake_nvml):
        def nvmlInit(self):
            never.wait()

    facts = machine({}, python=Unknown("not asked"), nvml=Hanging(h200), deadline_s=0.5)
    never.set()
    assert isinstance(facts["gpu.name"], Unknown)
    assert "did not answer within" in facts["gpu.name"].reason
    assert isinstance(facts["host.num_logical_cpus"], int | Unknown)
    assert facts["env.OMP_NUM_THREADS"] is None


def test_an_interpreter_that_hangs_is_ended(tmp_path):
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\nexec sleep 600\n")
    slow.chmod(0o755)
    facts = machine({"PATH": "/usr/bin:/bin"}, python=str(slow), deadline_s=1.0)
    assert isinstance(facts["torch.version"], Unknown)
    assert "did not answer" in facts["torch.version"].reason


def test_a_mistake_in_one_family_leaves_the_others(fake_nvml, h200):
    class Broken(fake_nvml):
        def nvmlSystemGetDriverVersion(self):
            raise ZeroDivisionError

    facts = machine({}, python=Unknown("not asked"), nvml=Broken(h200), deadline_s=60)
    assert set(gpu.NAMES) <= set(facts)
    assert "ZeroDivisionError" in facts["gpu.count"].reason
    assert isinstance(facts["host.nofile_soft"], int | None)


def test_an_import_that_hangs_leaves_what_was_read_without_it(site):
    (site / "torch/__init__.py").write_text("import threading; threading.Event().wait()\n")
    facts = machine({"PYTHONPATH": str(site)}, python=sys.executable, cwd=site, deadline_s=3)
    assert facts["torch.version"] == "2.11.0"
    assert "did not import torch within" in facts["torch.arch_list"].reason
    assert isinstance(facts["torch.runs_natively"], Unknown)


@pytest.fixture
def site(tmp_path):
    """A torch that `ask` cannot tell the architectures of, and that can be imported."""
    folder = tmp_path / "torch"
    folder.mkdir()
    (folder / "version.py").write_text("__version__ = '2.11.0'\ncuda = '13.0'\n")
    (folder / "__init__.py").write_text(
        "class _C:\n    _cuda_getArchFlags = staticmethod(lambda: 'sm_80')\nfrom . import version\n"
    )
    return tmp_path


def test_torch_is_imported_where_it_takes_that_and_what_fits_is_concluded(site, fake_nvml, h200, root):
    facts = machine(
        {"PYTHONPATH": str(site)},
        python=sys.executable,
        cwd=site,
        root=root.path,
        dev=root.path,
        nvml=fake_nvml(h200),
        deadline_s=60,
    )
    assert facts["torch.arch_list"] == ["sm_80"]
    assert facts["torch.runs_natively"] is False
    assert facts["torch.driver_ok"] is True


def test_the_interpreter_is_the_python_of_the_environment(tmp_path):
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "python").symlink_to(sys.executable)
    facts = machine({"PATH": str(folder)}, cwd=tmp_path, deadline_s=60)
    assert facts["python.executable"] == str(folder / "python")
