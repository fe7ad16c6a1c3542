"""`fsdp.…`, in a process of its own and in ranks that gather parameters."""

import json
import os
import subprocess
import sys

import pytest

NET = """
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
net = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(4)), torch.nn.Linear(8, 1))
for layer in list(net)[:4]:
    fully_shard(layer)
fully_shard(net)
"""
STEPS = """
for _ in range(3):
    net(torch.ones(2, 8)).sum().backward()
def groups(module):
    state = module._get_fsdp_state()
    return getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
def ahead(module):
    state = module._get_fsdp_state()
    return [len(state._states_to_forward_prefetch), len(state._states_to_backward_prefetch)]
"""
FOUND = """
out["reshard"] = [groups(one)[0].post_forward_mesh_info is not None for one in (*list(net)[:4], net)]
out["ahead"] = [ahead(one) for one in list(net)[:4]]
"""
WRAPPED = """
class Both(torch.nn.Module):
    def __init__(self, *nets):
        super().__init__()
        self.nets = torch.nn.ModuleList(nets)
    def forward(self, x):
        return sum(one(x) for one in self.nets)
first = net
"""
SECOND = (
    NET
    + """
net = Both(first, net)
"""
)
BEGIN = """
import os, torch
import torch.distributed as dist
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
"""
RANKS = (
    """
import json, os, torch
import torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(0)
"""
    + NET
    + STEPS
    + """
reshard = [groups(one)[0].post_forward_mesh_info is not None for one in list(net)[:4]]
grads = round(float(sum(p.grad.full_tensor().sum() for p in net.parameters())), 4)
print("RANK " + json.dumps([dist.get_rank(), reshard, ahead(net[0]), grads]) + "\\n", end="", flush=True)
dist.destroy_process_group()
"""
)


def test_parameters_stay_after_the_forward_pass_if_that_is_asked_for(child):
    done = child(BEGIN + NET + STEPS + FOUND, "fsdp.reshard_after_forward=false")
    assert done.out["reshard"] == [False] * 5
    assert done.readback["fsdp.reshard_after_forward"]["ok"] is True


def test_the_outermost_module_keeps_its_own_way(child):
    done = child(BEGIN + NET + STEPS + FOUND, "fsdp.reshard_after_forward=true")
    assert done.out["reshard"] == [True] * 4 + [False]
    assert done.readback["fsdp.reshard_after_forward"]["found"] == "true"


def test_modules_are_gathered_ahead_in_both_directions(child):
    done = child(BEGIN + NET + STEPS + FOUND, "fsdp.prefetch=2")
    assert done.out["ahead"] == [[2, 0], [2, 1], [1, 2], [0, 2]]
    assert done.readback["fsdp.prefetch"]["ok"] is True


def test_fsdp_prefetch_leaves_modules_alone_when_the_program_gathers_ahead_itself(child):
    own = NET + "net[0].set_modules_to_forward_prefetch([net[1]])\n"
    done = child(BEGIN + own + STEPS + FOUND, "fsdp.prefetch=2")
    assert done.out["ahead"] == [[1, 0], [0, 0], [0, 0], [0, 0]]
    assert done.readback["fsdp.prefetch"]["ok"] is False
    assert "itself" in done.readback["fsdp.prefetch"]["detail"]


@pytest.mark.parametrize(
    "begin", [NET + WRAPPED + SECOND, NET + WRAPPED + "net = Both(first)\n"], ids=["two", "one"]
)
def test_models_within_a_module_that_is_not_sharded_each_keep_to_themselves(child, begin):
    settings = "fsdp.reshard_after_forward=true", "fsdp.prefetch=2"
    done = child(BEGIN + begin + STEPS + "net = first\n" + FOUND, *settings)
    assert done.out["reshard"] == [True] * 4 + [False]
    assert done.out["ahead"] == [[2, 0], [2, 1], [1, 2], [0, 2]]
    assert all(done.readback[knob]["ok"] for knob in ("fsdp.reshard_after_forward", "fsdp.prefetch"))


def test_a_model_that_is_called_within_another_later_is_not_taken_for_the_programs_own_choice(child):
    later = WRAPPED + "Both(first)(torch.ones(2, 8)).sum().backward()\n"
    done = child(BEGIN + NET + STEPS + later, "fsdp.prefetch=2")
    assert (done.readback["fsdp.prefetch"]["ok"], done.readback["fsdp.prefetch"]["detail"]) == (True, "")


def test_more_ahead_than_there_are_modules_is_told(child):
    done = child(BEGIN + NET + STEPS + FOUND, "fsdp.prefetch=9")
    assert done.readback["fsdp.prefetch"]["ok"] is False
    assert "only 4 modules" in done.readback["fsdp.prefetch"]["detail"]


def test_a_program_that_shards_nothing_is_told_so(child):
    settings = "fsdp.reshard_after_forward=false", "fsdp.prefetch=2"
    done = child("import torch\ntorch.nn.Linear(2, 2)(torch.ones(1, 2))\n", *settings)
    for knob in ("fsdp.reshard_after_forward", "fsdp.prefetch"):
        assert done.readback[knob]["ok"] is False
        assert "no module that fully_shard sharded" in done.readback[knob]["detail"]


@pytest.mark.long
def test_no_rank_gathers_ahead_of_a_model_that_has_not_begun(tmp_path):
    two = RANKS.partition(NET)[0] + NET + WRAPPED + SECOND + STEPS + "dist.destroy_process_group()\n"
    (tmp_path / "ranks.py").write_text(two)
    ranks = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "ranks.py"]
    ours = [sys.executable, "-m", "dynotune", "run", "--set", "fsdp.prefetch=2", "--", *ranks]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_STATE_HOME": str(tmp_path / "state")}
    done = subprocess.run(
        ours, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_every_rank_has_it_and_learns_the_same(tmp_path):
    (tmp_path / "ranks.py").write_text(RANKS)
    ranks = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "ranks.py"]
    ours = [sys.executable, "-m", "dynotune", "run"]
    for setting in ("fsdp.reshard_after_forward=false", "fsdp.prefetch=2"):
        ours += ["--set", setting]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_STATE_HOME": str(tmp_path / "state")}
    said = []
    for words in (ranks, [*ours, "--", *ranks]):
        done = subprocess.run(
            words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240, check=False
        )
        assert done.returncode == 0, done.stderr
        lines = [line.partition("RANK ")[2] for line in done.stdout.splitlines() if "RANK " in line]
        said.append(sorted(json.loads(line) for line in lines))
    plain, changed = said
    assert [each[1:3] for each in plain] == [[[True] * 4, [0, 0]]] * 2
    assert [each[1:3] for each in changed] == [[[False] * 4, [2, 0]]] * 2
    assert [each[3] for each in plain] == [each[3] for each in changed]
