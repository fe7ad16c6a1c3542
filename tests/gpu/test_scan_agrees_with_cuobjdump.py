"""Every entry that cuobjdump lists, in its order: torch's libraries, and programs built here for known targets."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from dynotune.probe.gpu_code import device_code, gpu_archs
from dynotune.schema.device_code import Gpu

# No GPU is asked; but the tools stand where one is.
pytestmark = pytest.mark.gpu

LISTED = re.compile(r"^(ELF|PTX) file\s+\d+: .*\.(sm_\d+[af]?)\.(?:cubin|ptx)$", re.MULTILINE)
PROGRAM = "__global__ void k(float* x) { x[threadIdx.x] *= 2.f; }\nint main() { return 0; }\n"


def tool(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path="/usr/local/cuda/bin")
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def listed(file: Path) -> tuple[dict[str, list[str]], bool]:
    """What cuobjdump lists, and whether it got to the end; of some libraries it says that they are damaged."""
    forms: dict[str, list[str]] = {"ELF": [], "PTX": []}
    whole = True
    for option in ("-lelf", "-lptx"):
        done = subprocess.run([tool("cuobjdump"), option, file], capture_output=True, text=True, timeout=280)
        whole &= "fatal" not in done.stdout + done.stderr
        for form, name in LISTED.findall(done.stdout):
            forms[form].append(name)
    return forms, whole


def read(file: Path) -> dict[str, list[str]]:
    found = device_code.in_file(file)
    assert found.problems == []
    forms: dict[str, list[str]] = {"ELF": [], "PTX": []}
    for each in found.containers:
        for code in each:
            if code.form in ("machine", "ptx"):
                forms["ELF" if code.form == "machine" else "PTX"].append(f"sm_{code.sm}{code.suffix}")
    return forms


def assert_agrees(file: Path) -> tuple[int, bool]:
    """Entries that were read, and whether cuobjdump listed all of the file."""
    theirs, whole = listed(file)
    ours = read(file)
    for form, names in theirs.items():
        # cuobjdump shows `f` targets as plain ones: of machine code always, of PTX in older versions.
        said = [
            name if name == shown else name.removesuffix("f") for name, shown in zip(ours[form], names, strict=False)
        ]
        assert said == names, f"{file.name}, {form}"
        assert len(names) == len(ours[form]) or not whole, f"{file.name}, {form}"
    return sum(map(len, ours.values())), whole


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
        [tool("nvcc"), *options, *targeted, source, "-o", program], capture_output=True, text=True, timeout=280
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


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_90a", "sm_100", "sm_100a", "sm_120a", "sm_121"])
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
