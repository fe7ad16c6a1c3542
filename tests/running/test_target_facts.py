"""Facts of the environment of another process: its own variables, its own interpreter, its own limits."""

from __future__ import annotations

import os
import resource
import sys

from dynotune.running import target_facts, targets

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
