"""Lines of threads and loaders as speedscope reads them."""

from __future__ import annotations

import json

import msgspec

from dynotune.report import as_speedscope
from dynotune.schema.facts import Unknown
from dynotune.schema.host import Line, Thread
from dynotune.schema.loader import Loader, Loading, SamplePart
from dynotune.schema.observation import Observation, ProcessState
from dynotune.schema.timing import Timing

TORCH = "/env/site-packages/torch/optim/sgd.py(322): step"
LINES = [
    Line(function="train.py(10): main", callee=TORCH, leaf=TORCH, num=30),
    Line(function="train.py(12): main", num=10),
]


def observed(**changes) -> Observation:
    parts = [SamplePart(part="decode", what="PIL", num=5, wall_s=0.5, function="data.py(7): __getitem__")]
    loading = Loading(num_batches=10, fetch_s=0.1, cpu_s=0.1, longest_s=0.2, parts=parts)
    fields = {
        "pid": 1,
        "timing": Timing(
            **dict.fromkeys(("step_s", "median_step_s", "p99_step_s", "longest_step_s"), 0.2),
            num_steps=10,
            window_s=2.0,
        ),
        "threads": [Thread(of_steps=True, num=40, cpu_s=2.0, lines=LINES)],
        "loaders": [Loader(name="DataLoader", dataset="Data", loading=loading)],
    }
    return Observation(command=["python", "train.py"], facts={}, processes=[ProcessState(**fields | changes)])


def test_speedscope_has_a_profile_of_the_steps_and_one_of_each_loader_in_seconds():
    found = json.loads(as_speedscope(observed()))
    frames, (steps, loader) = found["shared"]["frames"], found["profiles"]
    assert (steps["weights"], steps["endValue"]) == ([1.5, 0.5], 2.0)
    assert [[frames[at].get("line") for at in stack] for stack in steps["samples"]] == [[10, 322], [12]]
    assert [frames[at]["name"] for at in loader["samples"][0]] == ["__getitem__ (data.py:7)", "decode: PIL"]
    assert loader["weights"] == [0.5]


def test_speedscope_holds_no_secrets_of_the_command():
    secret = "hf_" + "abcdefghijklmnopqrstuvwxyz012345"
    observation = msgspec.structs.replace(observed(), command=["python", "train.py", "--token", secret])
    assert secret.encode() not in as_speedscope(observation)


def test_speedscope_leaves_out_what_was_not_seen():
    assert json.loads(as_speedscope(observed(threads=[], loaders=[])))["profiles"] == []
    nothing = Observation(command=["python"], facts={}, processes=Unknown("no command was run"))
    assert json.loads(as_speedscope(nothing))["profiles"] == []


def test_speedscope_names_the_rank_when_there_are_several():
    profiles = json.loads(as_speedscope(observed(rank=1)))["profiles"]
    assert [profile["name"] for profile in profiles] == [
        "rank 1, the thread of the steps",
        "rank 1, loader 1",
    ]
