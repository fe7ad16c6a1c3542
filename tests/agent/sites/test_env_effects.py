"""Environment variables whose effect the live process tells, not their text alone."""

FAKE = """
import sys, types
config = types.ModuleType("torch._inductor.config")
config.compile_threads = {}
sys.modules["torch._inductor.config"] = config
"""


def test_the_compiler_tells_in_how_many_processes_it_compiles(child):
    done = child(FAKE.format(4), "env.TORCHINDUCTOR_COMPILE_THREADS=4", torch=False)
    answer = done.readback["env.TORCHINDUCTOR_COMPILE_THREADS"]
    assert (answer["ok"], answer["found"]) == (True, "4")
    assert answer["witness"] == "torch._inductor.config.compile_threads"


def test_a_program_that_sets_it_otherwise_does_not_have_what_was_asked(child):
    done = child(FAKE.format(1), "env.TORCHINDUCTOR_COMPILE_THREADS=4", torch=False)
    answer = done.readback["env.TORCHINDUCTOR_COMPILE_THREADS"]
    assert (answer["ok"], answer["found"]) == (False, "1")


def test_variable_itself_is_read_back_when_no_effect_tells_more(child):
    done = child("", "env.TORCHINDUCTOR_COMPILE_THREADS=4", "env.CUDA_MODULE_LOADING=EAGER", torch=False)
    for knob in ("env.TORCHINDUCTOR_COMPILE_THREADS", "env.CUDA_MODULE_LOADING"):
        assert done.readback[knob]["ok"] is True
        assert "getenv" in done.readback[knob]["witness"]
