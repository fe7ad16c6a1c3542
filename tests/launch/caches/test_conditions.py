from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec
import pytest

from dynotune.launch.caches import conditions
from dynotune.launch.caches.conditions import differences, instruction_sets
from dynotune.schema.cache_pack import Conditions

from .. import packs

CUDA = packs.listed("3/f/a", cache="cuda")
GRAPH = packs.listed("fxgraph/a/b", cache="inductor")
LIBRARY = packs.listed("ab/a.so", cache="inductor")
TRITON = packs.listed("K/k.cubin", cache="triton")
JITERATOR = packs.listed("k_arch9.0", cache="jiterator")
PACKAGE = packs.listed("net.pt2", cache="packages")
ALL = (CUDA, GRAPH, LIBRARY, TRITON, JITERATOR)


def found(*files, **here) -> dict[str, str]:
    """What differs, and how gravely, where the conditions are those of the pack but for `here`."""
    now = msgspec.structs.replace(packs.CONDITIONS, **here)
    return {each.what: each.severity for each in differences(packs.manifest(*files).origin, now)}


def test_under_the_same_conditions_nothing_differs():
    assert found(*ALL) == {}


@pytest.mark.parametrize(
    ("here", "what", "files"),
    [
        ({"gpus": ["NVIDIA L4 (8.9)"]}, "GPU", (TRITON,)),
        ({"gpus": []}, "GPU", (GRAPH,)),
        ({"driver": "999.1"}, "driver", (CUDA,)),
        ({"torch": "2.12.0"}, "torch", (GRAPH,)),
        ({"torch": "2.12.0"}, "torch", (PACKAGE,)),
        ({"gpus": []}, "GPU", (PACKAGE,)),
        ({"cuda": "12.8"}, "CUDA of torch", (JITERATOR,)),
        ({"triton": "3.7.0"}, "Triton", (TRITON,)),
        ({"python": "3.13"}, "Python", (TRITON,)),
        ({"platform": "Linux aarch64"}, "platform", (CUDA,)),
        ({"compiler": "g++ 14"}, "compiler", (LIBRARY,)),
        ({"torch_folder": "/other/torch"}, "folder of torch", (LIBRARY,)),
        ({"python_include": "/other"}, "Python's headers", (LIBRARY,)),
        ({"cpu_flags": ["amx_tile", "avx", "avx2", "avx512f", "sse"]}, "vector instructions", (LIBRARY,)),
    ],
)
def test_another_machine_makes_useless_what_depends_on_it(here, what, files):
    assert found(*files, **here) == {what: "useless"}


@pytest.mark.parametrize("field", ["driver", "torch", "cuda", "triton", "compiler", "torch_folder"])
def test_differences_are_harmless_when_nothing_in_the_pack_depends_on_them(field):
    only = {
        "driver": TRITON,
        "torch": CUDA,
        "cuda": TRITON,
        "triton": CUDA,
        "compiler": GRAPH,
        "torch_folder": GRAPH,
    }
    assert set(found(only[field], **{field: "other"}).values()) == {"harmless"}


def test_differences_are_unknown_when_a_condition_is_unknown():
    assert found(GRAPH, torch=None) == {"torch": "unknown"}
    assert found(GRAPH, gpus=None) == {"GPU": "unknown"}
    nothing = msgspec.structs.replace(packs.manifest(GRAPH), conditions=Conditions()).origin
    assert {each.what for each in differences(nothing, Conditions()) if each.severity == "unknown"} >= {
        "GPU",
        "torch",
    }


def test_fewer_kinds_of_gpus_than_were_packed_for_fit_and_another_one_does_not():
    both = ["NVIDIA H200 (9.0)", "NVIDIA L4 (8.9)"]
    manifest = packs.manifest(GRAPH)
    manifest = msgspec.structs.replace(
        manifest, conditions=msgspec.structs.replace(packs.CONDITIONS, gpus=both)
    )
    assert differences(manifest.origin, packs.CONDITIONS) == []
    assert found(GRAPH, gpus=both) == {"GPU": "useless"}


def test_code_for_instructions_that_are_missing_here_is_dangerous_and_comes_first():
    """Its key does not tell processors apart: it would be found, and crash."""
    missing = ["avx", "avx2", "sse"]
    given = found(*ALL, cpu_flags=missing, torch="other")
    assert given == {"processor": "dangerous", "torch": "useless"}
    assert next(iter(given)) == "processor"
    assert found(GRAPH, cpu_flags=missing) == {"processor": "harmless"}
    assert found(LIBRARY, cpu_flags=None) == {"processor": "unknown"}


def test_instruction_sets_are_those_that_all_processors_have_and_no_other_flags():
    text = "flags\t\t: fpu sse avx2 md_clear hypervisor avx512f\n\nflags : sse avx2 pti\n"
    assert instruction_sets(text) == ["avx2", "sse"]
    assert instruction_sets("Features : fp asimd sve\n") == ["asimd", "fp", "sve"]
    assert instruction_sets("processor : 0\n") is None


def test_this_machine_and_interpreter_are_asked(target_python):
    now = conditions.here({"CXX": "/no/such/compiler"}, target_python, Path.cwd())
    version = "import sys; print('%d.%d' % sys.version_info[:2])"
    assert (
        now.python
        == subprocess.run([target_python, "-c", version], capture_output=True, text=True).stdout.strip()
    )
    assert now.platform is not None and now.compiler == ""
    assert now.torch_folder is None or now.torch_folder.endswith("torch")


@pytest.mark.parametrize(
    ("env", "line"),
    [
        ({"TORCHINDUCTOR_FREEZING": "1"}, "TORCHINDUCTOR_FREEZING: packed without it, here 1"),
        ({"CXX": "/opt/gcc/bin/g++"}, "CXX: packed without it, here /opt/gcc/bin/g++"),
        ({"TORCHINDUCTOR_MAX_AUTOTUNE": "0"}, "TORCHINDUCTOR_MAX_AUTOTUNE: packed with 1, here 0"),
        ({}, "TORCHINDUCTOR_MAX_AUTOTUNE: packed with 1, here not set"),
    ],
)
def test_differing_variables_names_the_variable_when_it_is_part_of_inductors_keys(env, line):
    origin = packs.manifest(GRAPH, variables={"TORCHINDUCTOR_MAX_AUTOTUNE": "1"}).origin
    assert line in conditions.differing_variables(origin, env)


@pytest.mark.parametrize(
    "name",
    ["TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS", "TORCHINDUCTOR_FX_GRAPH_CACHE", "HOME"],
)
def test_differing_variables_is_empty_when_no_key_holds_the_variable(name):
    assert conditions.differing_variables(packs.manifest(GRAPH).origin, {name: "x"}) == []


def test_differing_variables_is_empty_when_the_compiler_named_is_the_one_that_torch_takes_anyway():
    assert conditions.differing_variables(packs.manifest(GRAPH).origin, {"CXX": "g++"}) == []
    named = packs.manifest(GRAPH, variables={"CXX": "g++"}).origin
    assert conditions.differing_variables(named, {}) == []


def test_differences_are_dangerous_when_a_package_was_built_for_more_instructions():
    assert found(PACKAGE, cpu_flags=["avx", "sse"]) == {"processor": "dangerous"}
    assert found(PACKAGE, compiler="g++ 14", torch_folder="/other") == dict.fromkeys(
        ("compiler", "folder of torch"), "harmless"
    )
