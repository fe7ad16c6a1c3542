"""Environment variables, allocator keys and preloaded libraries in a live process."""

import pytest

from dynotune.launch.process import environment

# getenv as C code and child processes see it.
PRELUDE = """
import ctypes, os, subprocess, sys
libc = ctypes.CDLL(None); libc.getenv.restype = ctypes.c_char_p
def c(name):
    value = libc.getenv(name.encode())
    return None if value is None else value.decode()
def inherited(name):
    code = f"import os; print(os.environ.get({name!r}))"
    return subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True).stdout.strip()
"""


def test_a_variable_kept_unset_stays_unset_for_c_and_children_and_the_program_reads_its_own_write(child):
    done = child(
        PRELUDE
        + """
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
out["own"] = os.environ["CUBLAS_WORKSPACE_CONFIG"]
out["c"] = c("CUBLAS_WORKSPACE_CONFIG")
out["inherited"] = inherited("CUBLAS_WORKSPACE_CONFIG")
""",
        "env.CUBLAS_WORKSPACE_CONFIG=@unset",
        env={"CUBLAS_WORKSPACE_CONFIG": ":16:8"},
        torch=False,
    )
    assert done.out == {"own": ":4096:8", "c": None, "inherited": "None"}
    answer = done.readback["env.CUBLAS_WORKSPACE_CONFIG"]
    assert answer["ok"] is True
    assert answer["found"] == "@unset"
    assert ":4096:8" in answer["detail"]


def test_cupti_is_asked_to_be_taken_down_when_torch_would_forbid_it(child):
    """torch.compile writes 0 where graphs and CUDA before 12.6 meet; Kineto asks getenv at each session's
    end."""
    done = child(
        PRELUDE
        + """
os.environ["TEARDOWN_CUPTI"] = "0"
out["own"] = os.environ["TEARDOWN_CUPTI"]
out["c"] = c("TEARDOWN_CUPTI")
""",
        "env.TEARDOWN_CUPTI=1",
        torch=False,
    )
    assert done.out == {"own": "1", "c": "1"}
    answer = done.readback["env.TEARDOWN_CUPTI"]
    assert (answer["ok"], answer["found"]) == (True, "1")
    assert answer["detail"] == "the program set it to 0; it was kept"


@pytest.mark.parametrize(
    "change",
    [
        'os.environ["X"] = "2"',
        'os.environ.update(X="2")',
        'os.environ |= {"X": "2"}',
        'os.environ.setdefault("X", "2")',
        'os.environb[b"X"] = b"2"',
        'os.putenv("X", "2")',
        'os.unsetenv("X")',
        'os.environ.pop("X")',
        'del os.environ["X"]',
        "os.environ.clear()",
        'os.environ = {"X": "2"}',
        "os.environ = os.environ.copy()",
    ],
)
def test_a_kept_value_outlives_every_way_of_writing_it(child, change):
    done = child(
        PRELUDE + change + '\nout["c"] = c("X")\nout["inherited"] = inherited("X")\n',
        "env.X=1",
        torch=False,
    )
    assert done.out == {"c": "1", "inherited": "1"}
    assert done.readback["env.X"]["ok"] is True
    assert done.errors() == []


def test_os_environ_shows_a_kept_value_after_the_program_has_written_another(child):
    done = child(
        PRELUDE
        + """
os.environ["X"] = "2"
out["item"], out["get"], out["in"] = os.environ["X"], os.environ.get("X"), "X" in os.environ
""",
        "env.X=1",
        torch=False,
    )
    assert done.out == {"item": "1", "get": "1", "in": True}
    assert done.readback["env.X"]["detail"] == "the program set it to 2; it was kept"


def test_the_audit_event_of_a_held_back_write_is_still_raised(child):
    done = child(
        PRELUDE
        + """
out["seen"] = []
def hook(name, args):
    if name in ("os.putenv", "os.unsetenv"):
        out["seen"].append([name, *(os.fsdecode(arg) for arg in args)])
sys.addaudithook(hook)
os.environ["X"] = "2"
del os.environ["X"]
out["kept"] = [settings.is_kept("X"), settings.is_kept("Y")]
""",
        "env.X=1",
        torch=False,
    )
    assert done.out["seen"] == [["os.putenv", "X", "2"], ["os.unsetenv", "X"]]
    assert done.out["kept"] == [True, False]


def test_other_variables_are_written_as_ever_and_wrong_types_raise_as_ever(child):
    done = child(
        PRELUDE
        + """
os.environ["Y"] = "3"
out["c"] = c("Y")
for value in (1, None):
    try:
        os.environ["X"] = value
    except TypeError as error:
        out["error"] = str(error)
try:
    del os.environ["NEVER"]
except KeyError as error:
    out["key"] = error.args[0]
""",
        "env.X=1",
        torch=False,
    )
    assert done.out == {"c": "3", "error": "str expected, not NoneType", "key": "NEVER"}


def test_c_code_that_writes_the_variable_is_found_out(child):
    done = child(PRELUDE + 'libc.setenv(b"X", b"9", 1)', "env.X=1", torch=False)
    assert done.readback["env.X"]["ok"] is False
    assert done.readback["env.X"]["found"] == "9"


def test_a_process_that_inherited_another_value_starts_with_the_one_asked_for(child):
    planned = [{"knob": "env.X", "value": "1", "site": {"type": "env", "name": "X"}, "keep": True}]
    program = PRELUDE + 'out["c"], out["python"] = c("X"), os.environ["X"]'
    done = child(program, env={"X": "7"}, torch=False, planned=planned)
    assert done.out == {"c": "1", "python": "1"}


def test_an_allocator_key_reaches_the_allocator_beside_those_already_set(child):
    done = child(
        'import os, torch\nos.environ["PYTORCH_CUDA_ALLOC_CONF"] = "backend:native"\n'
        'out["shows"] = hasattr(torch._C, "_accelerator_getAllocatorSettings")',
        "alloc.max_split_size_mb=64",
        "alloc.expandable_segments=true",
        env={"PYTORCH_CUDA_ALLOC_CONF": "garbage_collection_threshold:0.8"},
        facts={"torch.version": "2.13.0+cpu"},
    )
    if not done.out["shows"]:  # before torch 2.9, without a GPU
        assert {answer["ok"] for answer in done.readback.values()} == {None}
        assert "does not show" in done.readback["alloc.max_split_size_mb"]["found"]["reason"]
        return
    assert done.readback["alloc.max_split_size_mb"]["found"] == "64"
    assert all(answer["ok"] is True for answer in done.readback.values()), done.readback


@pytest.mark.long
def test_an_allocator_key_that_the_program_sets_anew_is_found_out(child):
    done = child(
        'import torch\nout["sets"] = hasattr(torch._C, "_accelerator_setAllocatorSettings")\n'
        'if out["sets"]: torch._C._accelerator_setAllocatorSettings("max_split_size_mb:128")',
        "alloc.max_split_size_mb=64",
    )
    if not done.out["sets"]:
        pytest.skip("this version of torch has no such function")
    assert done.readback["alloc.max_split_size_mb"]["ok"] is False
    assert done.readback["alloc.max_split_size_mb"]["found"] == "128"


def test_the_system_malloc_is_read_back_from_the_mapped_libraries(child):
    done = child("", "host.malloc=system", torch=False)
    assert done.readback["host.malloc"]["found"] == "system"
    assert done.readback["host.malloc"]["ok"] is True


@pytest.mark.skipif(
    environment.find_library(("libjemalloc.so.2",)) is None, reason="jemalloc is not installed"
)
def test_jemalloc_is_mapped_when_it_is_preloaded(child):
    done = child("", "host.malloc=jemalloc", torch=False)
    assert done.readback["host.malloc"]["ok"] is True


def test_a_library_that_was_not_mapped_is_not_taken_for_preloaded(child):
    site = {"type": "preload", "libraries": {"jemalloc": ["libjemalloc.so.2"]}}
    planned = [{"knob": "host.malloc", "value": "jemalloc", "site": site, "keep": True}]
    done = child("", torch=False, planned=planned)
    assert done.readback["host.malloc"]["ok"] is False
    assert done.readback["host.malloc"]["found"] == "system"


def test_a_secret_is_kept_and_read_back_though_the_plan_does_not_hold_it(child):
    done = child(
        PRELUDE
        + (
            'os.environ["A_TOKEN"] = "other"\nout["c"] = c("A_TOKEN")\nout["inherited"] = '
            'inherited("A_TOKEN")\n'
        ),
        "env.A_TOKEN=abc",
        torch=False,
    )
    assert done.out == {"c": "abc", "inherited": "abc"}
    assert done.readback["env.A_TOKEN"]["ok"] is True
