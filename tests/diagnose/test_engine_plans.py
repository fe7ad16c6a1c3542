"""A plan of an engine from a real program's shapes, and from what other files say."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from dynotune import knobs
from dynotune.diagnose import live_shapes, plan_engine
from dynotune.schema import document
from dynotune.schema.diagnosis import MemoryAccount
from dynotune.schema.engine_plan import Calls, EnginePlan, ShapeHistogram
from dynotune.schema.errors import CannotRunHere, CommandFailed
from dynotune.schema.facts import Unknown
from dynotune.schema.memory import Moment, RankMemory, Term
from dynotune.schema.precision import Precision, PrecisionArm
from dynotune.schema.study import Guarded

from ..fakes import Watcher, spec

INFERS = """
import torch
torch.set_num_threads(1)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(50, 8), torch.nn.Linear(8, 2)

    def forward(self, ids, mask=None):
        return self.head(self.embedding(ids).mean(1))

net, softmax = Net(), torch.nn.Softmax(-1)
with torch.inference_mode():
    for at in range(40):
        length = 16 if at % 4 else 100 + at
        softmax(net(torch.zeros(2, length, dtype=torch.long)))
"""


@pytest.fixture
def run(tmp_path):
    def made(script=INFERS):
        (tmp_path / "infer.py").write_text(script)
        env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
        command = [sys.executable, "infer.py"]
        return spec(command=command, cwd=tmp_path, env=env, base=tmp_path / "runs", lock=False, sandbox=False)

    return made


def test_shapes_of_the_largest_module_are_counted_from_the_first_call_to_the_last(run):
    found, folder, reason = live_shapes(run(), Watcher(), 60.0)
    assert (found.module, found.num_parameters) == ("__main__.Net", 50 * 8 + 8 * 2 + 2)
    assert found.dtypes == {"ids": "int64"}
    counts = {tuple(call.shapes["ids"]): call.num for call in found.calls}
    assert counts == {(2, 16): 30, **{(2, 100 + at): 1 for at in range(0, 40, 4)}}
    assert document.read(folder / "shapes.json", ShapeHistogram) == found
    assert reason == "no batch was kept"  # nobody asked for a model


def test_the_plan_and_the_script_lie_in_the_folder_and_hold_what_was_seen(tmp_path):
    seen = ShapeHistogram(calls=[Calls(9, {"x": [1, 8]}), Calls(1, {"x": [1, 800]})])
    found = plan_engine(seen, tmp_path)
    assert [profile.max for profile in found.profiles] == [{"x": [1, 8]}, {"x": [1, 800]}]
    assert document.read(tmp_path / "plan.json", EnginePlan) == found
    assert (tmp_path / "build.sh").read_text() == found.script
    assert "--maxShapes=x:1x800" in found.script


@pytest.mark.long
def test_the_exported_model_runs_in_onnx_runtime_with_the_shapes_of_the_plan_and_is_compared_on_the_commands_batches(  # noqa: E501
    run,
):
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    seen, folder, reason = live_shapes(run(), Watcher(), 60.0, onnx=True)
    assert reason == ""
    plan = plan_engine(seen, folder, model=str(folder / "model.onnx"), onnx=reason)
    assert (plan.onnx.verdict, plan.onnx.provider) == ("no worse", "CPUExecutionProvider")
    onnx.checker.check_model(str(folder / "model.onnx"))
    session = runtime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    for profile in plan.profiles:
        for shapes in (profile.min, profile.opt, profile.max):
            session.run(
                None, {name: np.zeros(sizes, plan.histogram.dtypes[name]) for name, sizes in shapes.items()}
            )
    assert "against the module: no worse" in plan.script
    assert plan.script.count("--loadRefOutputs") >= len(plan.onnx.batches) > 1


def test_a_model_that_could_not_be_exported_is_said_and_the_plan_is_made(tmp_path):
    seen = ShapeHistogram(calls=[Calls(1, {"x": [1, 8]})])
    found = plan_engine(seen, tmp_path, onnx="DispatchError: no function (infer.py(3): forward)")
    assert found.onnx == Unknown("DispatchError: no function (infer.py(3): forward)")
    assert "# Not compared with the module in ONNX Runtime: DispatchError" in found.script
    assert "loadRefOutputs" not in found.script


def account(folder, *ranks):
    document.write(folder / "memory.json", MemoryAccount(command=["train"], ranks=list(ranks)))
    return folder / "memory.json"


def rank(total, others, **fields):
    return RankMemory(device=0, total_bytes=total, others_bytes=others, **fields)


def test_the_workspace_is_what_others_leave_of_the_card_with_least_left(tmp_path):
    seen = ShapeHistogram(calls=[Calls(1, {"x": [1, 8]})])
    memory = account(
        tmp_path, rank(80 << 30, 10 << 30), rank(80 << 30, 20 << 30), rank(24 << 30, Unknown("no NVML"))
    )
    found = plan_engine(seen, tmp_path, memory=memory)
    assert found.workspace_bytes == 60 << 30
    assert "--memPoolSize=workspace:61440M" in found.script


def test_a_card_that_others_fill_leaves_the_least_that_can_be_said(tmp_path):
    seen = ShapeHistogram(calls=[Calls(1, {"x": [1, 8]})])
    found = plan_engine(seen, tmp_path, memory=account(tmp_path, rank(24 << 30, (24 << 30) - 9)))
    assert "--memPoolSize=workspace:1M" in found.script
    assert "whole card" not in found.script


def test_a_step_of_which_no_part_is_known_says_nothing_of_contexts(tmp_path):
    seen = ShapeHistogram(calls=[Calls(1, {"x": [1, 8]})])
    peak = Moment(process_bytes=0, reserved_bytes=0, requested_bytes=0, terms=[])
    found = plan_engine(seen, tmp_path, memory=account(tmp_path, rank(1 << 30, 0, peak=peak, trains=False)))
    assert found.profiles[0].context_bytes is None


def test_plan_has_no_limit_and_the_script_says_so_when_memory_of_others_is_unknown(tmp_path):
    seen = ShapeHistogram(calls=[Calls(1, {"x": [1, 8]})])
    found = plan_engine(seen, tmp_path, memory=account(tmp_path, rank(24 << 30, Unknown("no NVML"))))
    assert isinstance(found.workspace_bytes, Unknown)
    assert "memory.json does not say what others hold. TensorRT may use the whole card" in found.script


def test_a_context_needs_what_torch_needs_in_proportion_to_its_inputs(tmp_path):
    seen = ShapeHistogram(calls=[Calls(9, {"x": [1, 8]}), Calls(1, {"x": [1, 800]})])
    terms = [
        Term(name=name, num_bytes=num)
        for name, num in (("weights", 999), ("inputs", 100), ("activations", 900))
    ]
    peak = Moment(process_bytes=0, reserved_bytes=0, requested_bytes=0, terms=terms)
    found = plan_engine(seen, tmp_path, memory=account(tmp_path, rank(1 << 30, 0, peak=peak, trains=False)))
    assert [one.context_bytes for one in found.profiles] == [10, 1000]
    found = plan_engine(seen, tmp_path, memory=account(tmp_path, rank(1 << 30, 0, peak=peak, trains=True)))
    assert [one.context_bytes for one in found.profiles] == [
        None,
        None,
    ]  # it keeps activations that an engine does not


def measured(folder, **fields):
    guarded = {
        "arm": "tf32",
        "what": "outputs",
        "difference": 1e-3,
        "own": None,
        "tolerance": 0.1,
        "num_values": 9,
        "ok": True,
    }
    results = Guarded(**(guarded | {"reference": "float64", "baseline_error": 1e-6} | fields))
    arm = PrecisionArm(name="tf32", settings=[knobs.parse("matmul.fp32_precision=high")], results=results)
    document.write(folder / "precision.json", Precision(command=["infer"], own="float32", arms=[arm]))
    return folder / "precision.json"


def test_an_engine_may_err_as_far_as_errors_of_tf32_count_as_no_worse(tmp_path):
    seen = ShapeHistogram(calls=[Calls(1, {"x": [1, 8]})])
    found = plan_engine(seen, tmp_path, precision=measured(tmp_path))
    assert found.most_error == pytest.approx(4e-3)
    assert "0.4% of its root mean square: 4 times the error of TF32 in the command" in found.script
    assert "--snr-threshold 48" in found.script


@pytest.mark.parametrize("fields", [{"reference": ""}, {"difference": 0.5}])
def test_without_a_reference_or_with_errors_beyond_all_use_the_usual_one_is_allowed_and_it_is_said(
    tmp_path, fields
):
    seen = ShapeHistogram(calls=[Calls(1, {"x": [1, 8]})])
    found = plan_engine(seen, tmp_path, precision=measured(tmp_path, **fields))
    assert found.most_error == 0.02
    assert "has no error of TF32 in outputs" in found.script


def test_a_program_that_calls_no_module_and_one_that_fails_say_so(run):
    with pytest.raises(CannotRunHere):
        live_shapes(run("import torch\nprint(torch.ones(2).sum())\n"), Watcher(), 60.0)
    with pytest.raises(CommandFailed):
        live_shapes(run("import torch\nraise SystemExit(3)\n"), Watcher(), 60.0)
