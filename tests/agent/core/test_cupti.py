"""CUPTI after a recording: when Kineto is asked to detach it, and what the program sees of that."""

import ctypes
import mmap
import os
import threading
from types import SimpleNamespace

import pytest

from dynotune.agent.core import cupti
from dynotune.agent.core.cupti import NO_LAZY_START, TEARDOWN, Teardown, other_profiler, variables_kept


def getenv(name):
    """The variable as C code in this process sees it."""
    function = ctypes.CDLL(None).getenv
    function.restype = ctypes.c_char_p
    value = function(name.encode())
    return None if value is None else value.decode()


class FakeTorch:
    """A torch on CUDA whose synchronising ends Kineto's thread, as a CUDA call does."""

    def __init__(self, cuda="13.0", *, initialised=True):
        self.called = threading.Event()
        self.version = SimpleNamespace(cuda=cuda)
        self.cuda = SimpleNamespace(
            is_initialized=lambda: initialised,
            device_count=lambda: 1,
            current_device=lambda: 0,
            max_memory_reserved=lambda index: 1,
            synchronize=lambda index: self.called.set(),
        )


@pytest.fixture(params=[None, "0", "1"])
def before(request, monkeypatch):
    """What the program has set the variable to."""
    if request.param is None:
        monkeypatch.delenv(TEARDOWN, raising=False)
    else:
        monkeypatch.setenv(TEARDOWN, request.param)
    monkeypatch.setenv(NO_LAZY_START, "1")
    return request.param


def test_teardown_asks_kineto_alone_and_restores_the_variables_when_the_session_has_ended(before):
    torch = FakeTorch()
    with Teardown(torch) as teardown:
        assert (getenv(TEARDOWN), getenv(NO_LAZY_START)) == ("1", None)
        assert (os.environ.get(TEARDOWN), os.environ[NO_LAZY_START]) == (before, "1")
        kinetos = threading.Thread(target=torch.called.wait)
        kinetos.start()
    kinetos.join()
    assert teardown.stays == ""
    assert (getenv(TEARDOWN), getenv(NO_LAZY_START)) == (before, "1")


def test_teardown_says_that_cupti_stays_when_kinetos_thread_does_not_end(before, monkeypatch):
    monkeypatch.setattr(cupti, "MOST_S", 0.0)
    torch, end = FakeTorch(), threading.Event()
    with Teardown(torch) as teardown:
        kinetos = threading.Thread(target=end.wait)
        kinetos.start()
    assert "did not detach" in teardown.stays
    assert getenv(TEARDOWN) == before
    end.set()
    kinetos.join()


@pytest.mark.parametrize(("cuda", "stays"), [("12.4", True), ("11.8", True), (None, True), ("12.6", False)])
def test_teardown_leaves_cupti_when_this_cuda_cannot_detach_it_safely(cuda, stays, monkeypatch):
    monkeypatch.delenv(TEARDOWN, raising=False)
    with Teardown(FakeTorch(cuda)) as teardown:
        assert getenv(TEARDOWN) == (None if stays else "1")
    assert bool(teardown.stays) is stays


def test_teardown_is_seen_by_c_code_alone_when_a_setting_keeps_the_variable(monkeypatch):
    monkeypatch.setenv(TEARDOWN, "0")
    written = []
    monkeypatch.setattr(os, "putenv", lambda *change: written.append(change))
    monkeypatch.setattr(os, "unsetenv", lambda *change: written.append(change))
    with Teardown(FakeTorch()):
        assert getenv(TEARDOWN) == "1"
    assert getenv(TEARDOWN) == "0"
    assert written == []


def test_variables_are_kept_when_torch_writes_them_at_a_sessions_begin(before):
    with variables_kept():
        os.environ[TEARDOWN], os.environ[NO_LAZY_START] = "0", "0"
    assert (os.environ.get(TEARDOWN), os.environ[NO_LAZY_START]) == (before, "1")


@pytest.mark.parametrize("torch", [None, FakeTorch(initialised=False)])
def test_teardown_changes_nothing_when_the_program_has_not_started_cuda(torch, monkeypatch):
    monkeypatch.delenv(TEARDOWN, raising=False)
    with Teardown(torch) as teardown:
        assert getenv(TEARDOWN) is None
    assert teardown.stays == ""


def test_teardown_restores_the_variables_when_the_session_fails(before):
    with pytest.raises(RuntimeError), Teardown(FakeTorch()):
        raise RuntimeError
    assert getenv(TEARDOWN) == before


def test_other_profiler_is_none_when_only_torch_is_loaded(monkeypatch):
    monkeypatch.delenv(cupti.INJECTION_VARIABLE, raising=False)
    assert other_profiler() == ""


def test_other_profiler_is_the_library_that_the_variable_names(monkeypatch):
    monkeypatch.setenv(cupti.INJECTION_VARIABLE, "/opt/nsight/libToolsInjection64.so")
    assert other_profiler() == "libToolsInjection64.so"


@pytest.mark.parametrize(
    "name", ["libToolsInjectionProxy64.so", "libcuda-injection.so.1", "libsanitizer-collection.so"]
)
def test_other_profiler_is_a_library_that_was_loaded_into_the_process(name, tmp_path, monkeypatch):
    monkeypatch.delenv(cupti.INJECTION_VARIABLE, raising=False)
    library = tmp_path / name
    library.write_bytes(b"x")
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
        assert other_profiler() == name
