"""Facts of the environment of another process: its own variables, its own interpreter, its own limits."""

from __future__ import annotations

import os
import resource
import sys

from dynotune.running import target_facts, targets
from dynotune.schema.facts import Unknown

from .conftest import READY


def facts_of(program):
    return target_facts.facts(targets.find(program.pid).ranks[0].process)


def test_facts_are_of_the_process_when_its_variables_differ_from_ours(started, monkeypatch):
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "0")
    found = facts_of(started(env={"CUDA_LAUNCH_BLOCKING": "1", "OMP_NUM_THREADS": "3"}))
    assert (found["env.CUDA_LAUNCH_BLOCKING"], found["env.OMP_NUM_THREADS"]) == ("1", "3")
    assert found["python.executable"] == sys.executable


def test_facts_have_the_cores_and_limits_of_the_process_when_they_differ_from_ours(started):
    code = "import os, resource; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
    code += f"resource.setrlimit(resource.RLIMIT_NOFILE, (64, 128)); {READY}"
    found = facts_of(started(code))
    assert found["host.affinity"] == [min(os.sched_getaffinity(0))]
    assert (found["host.nofile_soft"], found["host.nofile_hard"]) == (64, 128)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] != 64


def test_variables_leave_out_those_of_a_dynotune_when_it_started_the_program():
    ours = f"/x/dynotune/agent/bootstrap{os.pathsep}/home/me/lib"
    env = {"DYNOTUNE_RUN": "/runs/1", "PYTHONPATH": ours, "HOME": "/home/me"}
    assert target_facts.own_variables(env) == {"PYTHONPATH": "/home/me/lib", "HOME": "/home/me"}


def test_program_is_no_other_process_when_it_uses_its_gpus():
    facts = {
        "gpu.pids_comparable": True,
        "gpu.processes": ["7 python", "9 serve"],
        "gpu.num_processes": 2,
        "gpu1.processes": ["8 python"],
        "gpu1.num_processes": 1,
        "gpu.utilisation_percent": 90,
    }
    found = target_facts.without_own_gpu_use(facts, {7, 8})
    assert (found["gpu.processes"], found["gpu.num_processes"]) == (["9 serve"], 1)
    assert (found["gpu1.processes"], found["gpu1.num_processes"]) == ([], 0)
    assert found["gpu.utilisation_percent"] == 90


def test_other_processes_are_unknown_when_gpus_name_ids_of_another_namespace():
    facts = {
        "gpu.pids_comparable": False,
        "gpu.processes": ["4711 ?"],
        "gpu.num_processes": 1,
        "gpu.utilisation_percent": 90,
        "gpu.memory_used_bytes": 1 << 30,
        "gpu.name": "H200",
    }
    found = target_facts.without_own_gpu_use(facts, {7})
    assert found.pop("gpu.name") == "H200" and found.pop("gpu.pids_comparable") is False
    assert all(isinstance(value, Unknown) for value in found.values())
    none = {"gpu.pids_comparable": False} | {name: Unknown("there is no GPU") for name in found}
    assert target_facts.without_own_gpu_use(none, {7}) == none
