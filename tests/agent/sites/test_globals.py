"""Values that hold for the whole process."""

import pytest


def test_attributes_and_setters_are_set_right_after_the_import_of_torch(child):
    done = child(
        """
        import torch
        out["found"] = [
            torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark,
            torch.are_deterministic_algorithms_enabled(), torch.get_num_threads(),
        ]
        """,
        "matmul.fp32_precision=high",
        "cudnn.benchmark=true",
        "cudnn.deterministic=true",
        "determinism.algorithms=true",
        "host.num_threads=1",
        "host.interop_threads=3",
    )
    assert done.out["found"] == ["high", True, True, 1]
    assert len(done.readback) == 6
    assert all(answer["ok"] is True for answer in done.readback.values()), done.readback
    assert done.readback["host.interop_threads"]["found"] == "3"


def test_global_settings_lose_and_readback_says_so_when_the_program_sets_them_later(child):
    done = child(
        """
        import torch
        torch.backends.cudnn.benchmark = False
        torch.set_float32_matmul_precision("highest")
        torch.set_num_threads(2)
        torch.nn.Linear(1, 1)(torch.ones(1, 1))
        out["found"] = [torch.backends.cudnn.benchmark, torch.get_float32_matmul_precision()]
        """,
        "cudnn.benchmark=true",
        "matmul.fp32_precision=medium",
        "host.num_threads=1",
    )
    assert done.out["found"] == [True, "medium"]
    assert done.readback["cudnn.benchmark"]["ok"] is True
    assert done.readback["cudnn.benchmark"]["detail"] == "the program set it to false; it was put back"
    assert (
        done.readback["matmul.fp32_precision"]["detail"] == "the program set it to highest; it was put back"
    )
    assert {event["knob"] for event in done.events} == set(done.readback)


def test_a_change_after_the_window_has_begun_is_found_out(child):
    done = child(
        "import torch\nsettings.hold()\ntorch.backends.cudnn.benchmark = False", "cudnn.benchmark=true"
    )
    assert done.readback["cudnn.benchmark"]["ok"] is False
    assert "after the window had begun" in done.readback["cudnn.benchmark"]["detail"]


def test_the_programs_own_call_for_interop_threads_does_not_raise(child):
    done = child("import torch\ntorch.set_num_interop_threads(2)", "host.interop_threads=3")
    assert done.readback["host.interop_threads"]["ok"] is True
    assert done.readback["host.interop_threads"]["detail"] == "the program set it to 2; it was put back"


def test_matmul_precision_is_read_and_put_back_where_the_program_uses_the_newer_attribute(child):
    done = child(
        """
        import torch
        if hasattr(torch.backends.cuda.matmul, "fp32_precision"):  # from torch 2.9 on
            torch.backends.cuda.matmul.fp32_precision = "ieee"
            torch.backends.fp32_precision = "ieee"
        settings.hold()
        """,
        "matmul.fp32_precision=high",
    )
    assert done.readback["matmul.fp32_precision"]["ok"] is True, done.readback


@pytest.mark.long
def test_a_module_attribute_that_this_torch_lacks_is_reported_and_not_invented(child):
    site = {"type": "attr", "path": "torch.backends.cudnn.never_heard_of"}
    planned = [{"knob": "cudnn.never", "value": True, "site": site, "keep": True}]
    done = child(
        "import torch\nout['has'] = hasattr(torch.backends.cudnn, 'never_heard_of')", planned=planned
    )
    assert done.out["has"] is False
    assert done.readback["cudnn.never"]["ok"] is False
    assert "never_heard_of" in done.readback["cudnn.never"]["detail"]


@pytest.mark.long
def test_a_setting_of_a_kind_unknown_to_the_agent_is_answered_and_not_dropped(child):
    planned = [{"knob": "new.thing", "value": 1, "site": {"type": "module", "action": "new"}, "keep": True}]
    done = child("", planned=planned)
    assert done.readback["new.thing"]["ok"] is False


def test_a_damaged_plan_is_answered_and_logged_and_never_raised(child):
    damaged = [
        {"knob": "a", "value": 1, "site": {}},
        {"knob": "b", "value": 1, "site": {"type": "constructor", "targets": ["torch.optim.Adam"]}},
        {
            "knob": "c",
            "value": 1,
            "site": {"type": "constructor", "targets": ["torch.utils.data.DataLoader"]},
        },
        {"knob": "d", "value": 1, "site": {"type": "alloc_conf"}},
        {"knob": "e", "value": 1, "site": {"type": "call", "set": "torch.nothing", "get": "torch.nothing"}},
        {"knob": "f", "value": 1, "site": {"type": "attr"}},
        {"knob": "g", "value": 1, "site": {"type": "env"}},
    ]
    done = child("import torch\ntorch.nn.Linear(1, 1)(torch.ones(1, 1))\nsettings.hold()", planned=damaged)
    assert set(done.readback) == set("abcdefg")
    assert {answer["ok"] for answer in done.readback.values()} <= {False, None}
    assert done.errors()


def test_fill_memory_saves_the_fill_of_a_new_tensor_when_deterministic_algorithms_are_on(child):
    program = """
        import torch
        torch.use_deterministic_algorithms(True)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
            torch.empty(1000)
        out["fills"] = sum(event.count for event in recorded.key_averages() if event.key == "aten::fill_")
        """
    assert child(program).out["fills"] == 1
    done = child(program, "determinism.fill_memory=false")
    assert done.out["fills"] == 0
    answer = done.readback["determinism.fill_memory"]
    assert (answer["found"], answer["ok"]) == ("false", True)
