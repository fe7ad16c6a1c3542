"""The script starts tools with options that they document, and means by them what the plan says.

TensorRT cannot be installed everywhere: tools that note their arguments stand in for it. Polygraphy is the
real one, where it is installed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import msgspec
import pytest

from dynotune.engines import build_script, plan_profiles
from dynotune.schema.engine_plan import Batch, Calls, OnnxCheck, ShapeHistogram

from .models import save_linear

TABLES = tomllib.loads((Path(__file__).parent / "documented.toml").read_text())
DOCUMENTED = {tool: set(table["options"].split()) for tool, table in TABLES.items()}
TRTEXEC, POLYGRAPHY = DOCUMENTED["trtexec"], DOCUMENTED["polygraphy run"]
NOTES = """#!{python}
import json, os, sys
with open(os.environ["NOTED"], "a") as file:
    print(json.dumps([os.path.basename(sys.argv[0]), *sys.argv[1:]]), file=file)
sys.exit(os.environ.get("FAILS", "nothing") in sys.argv)
"""
ODD = "images; touch broken $(touch broken) `x`\n&"


def plan_of(*shapes, num=None, dtypes=None, **more):
    plan = plan_profiles(
        ShapeHistogram(module="Net", dtypes=dtypes or {}, calls=[Calls(1, one) for one in shapes]), num
    )
    return msgspec.structs.replace(plan, **more)


TWO = plan_of(
    *({"ids": [4, n], "mask": [4, n]} for n in (8, 9, 100, 101)),
    num=2,
    dtypes={"ids": "int64", "mask": "bool"},
)


def run(script, folder, **env):
    """What the script started."""
    for tool in ("trtexec", "polygraphy"):
        (folder / tool).write_text(NOTES.format(python=sys.executable))
        (folder / tool).chmod(0o755)
    (folder / "model.onnx").touch()
    path = f"{folder}:{os.environ['PATH']}"
    env = {"PATH": path, "NOTED": str(folder / "noted"), **env}
    done = subprocess.run(
        ["bash"], input=script, text=True, cwd=folder, env=env, capture_output=True, check=False
    )
    noted = folder / "noted"
    return [json.loads(line) for line in noted.read_text().splitlines()] if noted.exists() else [], done


def options_of(words):
    return [word.partition("=")[0] for word in words if word.startswith("--")]


def shapes_of(text):
    """As trtexec reads them: a comma parts inputs, the last colon a name from its sizes, an x the sizes."""
    parts = (one.rpartition(":") for one in text.split(","))
    return {name: [] if sizes == "scalar" else list(map(int, sizes.split("x"))) for name, _, sizes in parts}


@pytest.mark.parametrize("is_dynamic", [True, False])
@pytest.mark.parametrize(
    "plan",
    [
        TWO,
        plan_of({"x": [1, 3, 640, 640]}, workspace_bytes=12_345_678_901),
        plan_of({"x": [1], "scale": []}, {"x": [2], "scale": []}),
    ],
)
def test_every_option_is_one_that_its_tool_documents(plan, is_dynamic, tmp_path):
    started, done = run(build_script(plan, is_dynamic=is_dynamic), tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert {words[0] for words in started} == {"trtexec", "polygraphy"}
    for tool, *words in started:
        assert set(options_of(words)) <= (TRTEXEC if tool == "trtexec" else POLYGRAPHY)
        # There are none for precisions in TensorRT 11, and its networks are strongly typed anyway.
        assert not {"--fp16", "--int8", "--best", "--stronglyTyped", "--strongly-typed", "--calib"} & set(
            words
        )


def test_each_profile_is_built_with_its_index_and_its_three_shapes(tmp_path):
    (build, *_), _ = run(build_script(TWO, is_dynamic=True), tmp_path)
    at = build.index("--profile=0")
    assert build[:at] == [
        *("trtexec", "--onnx=model.onnx", "--saveEngine=model.plan", "--timingCacheFile=model.timings"),
        "--skipInference",
    ]
    assert options_of(build[at:]) == ["--profile", "--minShapes", "--optShapes", "--maxShapes"] * 2
    values = [word.partition("=")[2] for word in build[at:]]
    for number, profile in enumerate(TWO.profiles):
        index, *corners = values[4 * number : 4 * number + 4]
        assert int(index) == number
        assert list(map(shapes_of, corners)) == [profile.min, profile.opt, profile.max]


def test_a_single_profile_needs_no_index_and_a_model_of_fixed_sizes_no_shapes(tmp_path):
    plan = plan_of({"x": [1, 8]})
    started, _ = run(build_script(plan, is_dynamic=True), tmp_path)
    assert not any(one in options_of(words) for words in started for one in ("--profile", "--useProfile"))
    assert "--optShapes=x:1x8" in started[0]
    (tmp_path / "noted").unlink()
    started, _ = run(build_script(plan, is_dynamic=False), tmp_path)
    assert not any("hapes=" in word for words in started for word in words)


def test_the_workspace_is_limited_to_what_is_left_and_where_that_is_unknown_it_says_so(tmp_path):
    (build, *_), _ = run(
        build_script(plan_of({"x": [1]}, workspace_bytes=5 << 30), is_dynamic=False), tmp_path
    )
    assert "--memPoolSize=workspace:5120M" in build
    assert "memPoolSize" not in build_script(TWO, is_dynamic=True)
    assert "# No limit for the workspace: dynotune memory was not run." in build_script(TWO, is_dynamic=True)


def test_each_profile_is_compared_with_onnx_runtime_on_the_same_inputs_and_timed_with_more_streams(tmp_path):
    started, _ = run(build_script(TWO, is_dynamic=True), tmp_path)
    compared = [words for words in started if words[0] == "polygraphy"]
    assert len(compared) == 2 * len(TWO.profiles)
    for at, profile in enumerate(TWO.profiles):
        reference, engine = compared[2 * at : 2 * at + 2]
        sizes = [f"{name}:[{','.join(map(str, sizes))}]" for name, sizes in profile.opt.items()]
        assert reference[1:-4] == ["run", "model.onnx", "--onnxrt", "--input-shapes", *sizes]
        assert reference[-3::2] == [f"inputs-{at}.json", f"outputs-{at}.json"]
        assert [f"inputs-{at}.json", f"outputs-{at}.json"] == [
            engine[engine.index("--load-" + x) + 1] for x in ("inputs", "outputs")
        ]
        assert engine[engine.index("--optimization-profile") + 1] == str(at)
    timed = [words for words in started if any(word.startswith("--infStreams") for word in words)]
    assert len(timed) == 3 * len(TWO.profiles)
    assert all("--allocationStrategy=profile" in words for words in timed)


def test_build_script_stops_at_the_first_tool_that_fails(tmp_path):
    started, done = run(build_script(TWO, is_dynamic=True), tmp_path, FAILS="--trt")
    assert done.returncode == 1
    assert [words[0] for words in started] == ["trtexec", "polygraphy", "polygraphy"]


def test_without_the_model_it_says_what_to_do_and_starts_nothing(tmp_path):
    script = build_script(TWO, is_dynamic=True, model="elsewhere.onnx")
    started, done = run(script, tmp_path)
    assert (done.returncode, done.stdout, started) == (2, "Export the model to elsewhere.onnx first.\n", [])


def test_no_name_ends_a_comment_or_starts_a_command(tmp_path):
    plan = plan_of({ODD: [1]}, {ODD: [2]}, notes=["a\ntouch broken"])
    plan = msgspec.structs.replace(
        plan, histogram=msgspec.structs.replace(plan.histogram, module="a\ntouch broken")
    )
    started, done = run(build_script(plan, is_dynamic=True), tmp_path)
    assert done.returncode == 0
    assert not (tmp_path / "broken").exists()
    assert {words[0] for words in started} == {"trtexec", "polygraphy"}


@pytest.mark.parametrize("name", ["a model $(touch broken).onnx", "it's `x`.onnx"])
def test_a_model_of_any_name_is_one_argument(tmp_path, name):
    (tmp_path / name).touch()
    started, done = run(build_script(TWO, is_dynamic=True, model=name), tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"--onnx={name}" in started[0]
    assert started[1][:3] == ["polygraphy", "run", name]
    assert not (tmp_path / "broken").exists()


def test_the_lines_for_modelopt_use_options_that_it_documents():
    lines = [
        line.split() for line in build_script(TWO, is_dynamic=True).splitlines() if "-m modelopt" in line
    ]
    assert [words[3] for words in lines] == ["modelopt.onnx.autocast", "modelopt.onnx.quantization"]
    for words in lines:
        used = [word for word in words if word.startswith("--")]
        assert len(used) > 2
        assert set(used) <= DOCUMENTED[words[3]]


def test_the_error_that_is_allowed_and_the_memory_of_a_context_stand_beside_what_they_are_for(tmp_path):
    plan = plan_of({"x": [1, 8]}, most_error=0.001, error_from="measured")
    profiles = [msgspec.structs.replace(one, context_bytes=5 << 20) for one in plan.profiles]
    script = build_script(msgspec.structs.replace(plan, profiles=profiles), is_dynamic=True)
    assert "An output may be off by 0.1% of its root mean square: measured." in script
    assert "A context takes about 5 MiB" in script
    assert "--snr-threshold 60" in script
    assert "context takes" not in build_script(plan, is_dynamic=True)


def test_batches_of_the_command_are_compared_at_each_profile_that_holds_them(tmp_path):
    batches = [
        Batch(
            {"ids": [4, n], "mask": [4, n]},
            {"ids": f"{n} $(touch broken).bin", "mask": "m.bin"},
            {"y": "y.bin"},
        )
        for n in (8, 100)
    ]
    plan = msgspec.structs.replace(TWO, onnx=OnnxCheck("CPU", "no worse", 8, 1e-7, 1e-7, batches))
    started, done = run(build_script(plan, is_dynamic=True), tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    compared = [words for words in started if any("--loadRefOutputs" in word for word in words)]
    values = [dict(word.split("=", 1) for word in words[1:]) for words in compared]
    assert [(one["--useProfile"], one["--shapes"]) for one in values] == [
        *(("0", "ids:4x8,mask:4x8"), ("1", "ids:4x8,mask:4x8"), ("1", "ids:4x100,mask:4x100")),
    ]
    assert values[0]["--loadInputs"] == "ids:8 $(touch broken).bin,mask:m.bin"
    assert values[0]["--loadRefOutputs"] == "y:y.bin"
    assert float(values[0]["--accuracyThreshold"]) == pytest.approx(TWO.most_error**2 / 2)
    assert all(set(one) <= TRTEXEC for one in values)
    assert not (tmp_path / "broken").exists()


class Input:
    """The keywords of torch_tensorrt.Input in 2.14; `profiles` stands alone."""

    def __init__(self, *, name, dtype=None, profiles=None, min_shape=None, opt_shape=None, max_shape=None):
        self.name, self.dtype = name, dtype
        corners = {"min_shape": min_shape, "opt_shape": opt_shape, "max_shape": max_shape}
        assert (profiles is None) != (corners["min_shape"] is None)
        self.profiles = profiles or [corners]


@pytest.mark.parametrize("plan", [TWO, plan_of({"x": [1, 8]}, {"x": [1, 9]})])
def test_inputs_for_torch_tensorrt_are_python_and_hold_the_profiles(plan):
    lines = build_script(plan, is_dynamic=True).splitlines()
    begin, end = (lines.index(one) for one in ("#   inputs = [", "#   ]"))
    types = type("torch", (), {"int64": "int64", "bool": "bool"})
    space = {"torch_tensorrt": type("torch_tensorrt", (), {"Input": Input}), "torch": types}
    exec("\n".join(line[4:] for line in lines[begin : end + 1]), space)
    assert [one.name for one in space["inputs"]] == list(plan.profiles[0].opt)
    assert [one.dtype for one in space["inputs"]] == [
        plan.histogram.dtypes.get(one.name) for one in space["inputs"]
    ]
    for one in space["inputs"]:
        for corner in ("min", "opt", "max"):
            assert [list(each[f"{corner}_shape"]) for each in one.profiles] == [
                getattr(profile, corner)[one.name] for profile in plan.profiles
            ]


def polygraphy(words, folder, **kwargs):
    command = [sys.executable, str(Path(sys.executable).with_name("polygraphy")), *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, **kwargs)


def test_polygraphy_makes_of_its_lines_what_is_meant_by_them(tmp_path):
    pytest.importorskip("polygraphy")
    started, _ = run(build_script(TWO, is_dynamic=True), tmp_path)
    (tmp_path / "model.plan").touch()
    _, _, _, engine = (words for words in started if words[0] == "polygraphy")
    done = polygraphy([*engine[1:], "--gen-script", "made.py"], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    made = (tmp_path / "made.py").read_text()
    assert "optimization_profile=1" in made
    assert "SnrCompareFunc(snr_threshold={'': 34})" in made
    assert "RunResults.load_streaming('outputs-1.json'" in made


@pytest.mark.long
def test_an_engine_that_errs_by_more_than_tf32_may_is_refused_and_one_that_does_not_passes(tmp_path):
    """ONNX Runtime stands in for the engine, with weights that are off."""
    for package in ("polygraphy", "onnx", "onnxruntime"):
        pytest.importorskip(package)
    plan = plan_of({"x": [2, 16]}, {"x": [5, 16]})
    started, _ = run(build_script(plan, is_dynamic=True), tmp_path)
    save_linear(tmp_path / "model.onnx")
    _, reference, check, *_ = started
    assert polygraphy(reference[1:], tmp_path).returncode == 0
    options = check[check.index("--load-inputs") :]
    for error, code in ((0.01, 0), (0.03, 1)):
        save_linear(tmp_path / "off.onnx", error=error)
        done = polygraphy(["run", "off.onnx", "--onnxrt", *options], tmp_path)
        assert done.returncode == code, done.stdout[-2000:]
