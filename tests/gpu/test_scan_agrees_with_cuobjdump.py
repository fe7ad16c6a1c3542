"""Every entry that cuobjdump lists, in its order: torch's libraries, and programs built here for known
targets."""

from __future__ import annotations

import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from dynotune.probe.gpu_code import device_code, gpu_archs
from dynotune.schema.device_code import Gpu
from lab.cuobjdump import assert_agrees, find_tool, read

# No GPU is asked; but the tools stand where one is.
pytestmark = pytest.mark.gpu

PROGRAM = "__global__ void k(float* x) { x[threadIdx.x] *= 2.f; }\nint main() { return 0; }\n"


def tool(name: str) -> str:
    found = find_tool(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


@pytest.fixture(autouse=True)
def skipped_without_cuobjdump() -> None:
    tool("cuobjdump")


def torch_libraries() -> list[Path]:
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return []
    site = Path(spec.origin).parent.parent
    found = [*site.glob("torch/lib/*.so*"), *site.glob("nvidia/**/*.so*")]
    return sorted({path.resolve() for path in found if path.stat().st_size > 1 << 16})


@pytest.mark.parametrize("library", torch_libraries(), ids=lambda path: path.name)
def test_every_entry_of_torchs_libraries_is_the_one_that_cuobjdump_lists(library):
    assert_agrees(library)


def test_torchs_own_library_has_entries_at_all():
    library = next((path for path in torch_libraries() if path.name == "libtorch_cuda.so"), None)
    if library is None:
        pytest.skip("this torch is built without CUDA")
    assert sum(map(len, read(library).values())) > 100


@pytest.mark.parametrize(
    ("targets_of_nvcc", "capabilities"),
    [
        (["arch=compute_75,code=compute_75"], {"7.0": "cannot", "7.5": "jit", "9.0": "jit", "12.0": "jit"}),
        (
            ["arch=compute_80,code=sm_80", "arch=compute_90,code=sm_90"],
            {"8.0": "native", "8.6": "native", "9.0": "native", "10.0": "cannot"},
        ),
        (["arch=compute_90a,code=[sm_90a,compute_90a]"], {"9.0": "native", "10.0": "cannot"}),
        (
            ["arch=compute_100f,code=[sm_100f,compute_100f]"],
            {"9.0": "cannot", "10.0": "native", "10.3": "native", "12.0": "cannot"},
        ),
        (["arch=compute_80,code=[sm_80,compute_80]"], {"8.6": "native", "9.0": "jit"}),
    ],
    ids=lambda value: value[0].split(",")[0] if isinstance(value, list) else "",
)
@pytest.mark.parametrize("options", [[], ["-Xfatbin=-compress-all"], ["-rdc=true"], ["-G"]], ids=" ".join)
def test_programs_built_here_for_known_targets_agree_and_are_judged_rightly(
    tmp_path, targets_of_nvcc, capabilities, options
):
    source, program = tmp_path / "k.cu", tmp_path / "program"
    source.write_text(PROGRAM)
    targeted = [word for target in targets_of_nvcc for word in ("-gencode", target)]
    built = subprocess.run(
        [tool("nvcc"), *options, *targeted, source, "-o", program],
        capture_output=True,
        text=True,
        timeout=280,
    )
    if "Unsupported gpu architecture" in built.stderr:
        pytest.skip(f"this nvcc does not know {targets_of_nvcc}")
    # Linking device code leaves only machine code: there is none to link of PTX alone.
    if options == ["-rdc=true"] and not any("sm_" in target for target in targets_of_nvcc):
        pytest.skip("nothing to link")
    assert built.returncode == 0, built.stderr
    assert assert_agrees(program)[0] > 0
    if options == ["-rdc=true"]:
        return
    containers = device_code.in_file(program).containers
    for capability, expected in capabilities.items():
        found = gpu_archs.verdict(containers, Gpu(compute_capability=capability))
        # nvcc adds a container without a function: machine code where there is some, nothing of PTX alone.
        assert found.verdict == expected, capability


@pytest.mark.parametrize(
    "arch", ["sm_75", "sm_80", "sm_90", "sm_90a", "sm_100", "sm_100a", "sm_120a", "sm_121"]
)
def test_cubins_and_ptx_name_the_target_that_nvcc_was_given(tmp_path, arch):
    source = tmp_path / "k.cu"
    source.write_text(PROGRAM)
    for form, virtual in (("cubin", arch), ("ptx", arch.replace("sm", "compute"))):
        made = tmp_path / f"k.{form}"
        built = subprocess.run(
            [tool("nvcc"), f"-{form}", f"-arch={virtual}", source, "-o", made],
            capture_output=True,
            text=True,
            timeout=280,
        )
        if "Unsupported gpu architecture" in built.stderr:
            pytest.skip(f"this nvcc does not know {arch}")
        assert built.returncode == 0, built.stderr
        (container,) = device_code.in_file(made).containers
        assert [code.name for code in container] == [virtual]
