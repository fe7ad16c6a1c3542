"""An arm is switched on, and what the program had is put back to the letter. Torch's own settings, in this
process."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

from dynotune.agent.sites.site import NotSwitched
from dynotune.agent.tasks.arm_switch import ArmSwitch, HasAlready
from dynotune.schema.reasons import Reason

from .fake_program import fake_program

THREADS = {"type": "call", "set": "torch.set_num_threads", "get": "torch.get_num_threads"}
PRECISION = {
    "type": "call",
    "set": "torch.set_float32_matmul_precision",
    "get": "torch.get_float32_matmul_precision",
}
DETERMINISTIC = {
    "type": "call",
    "set": "torch.use_deterministic_algorithms",
    "get": "torch.are_deterministic_algorithms_enabled",
}
CUDNN = {"type": "attr", "path": "torch.backends.cudnn.deterministic"}


def settings_now():
    found = {
        "threads": torch.get_num_threads(),
        "precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "cudnn": torch.backends.cudnn.deterministic,
    }
    for backend in (torch.backends.cuda, torch.backends.mkldnn):
        found[backend.__name__] = getattr(getattr(backend, "matmul", None), "fp32_precision", None)
    return found


@pytest.fixture(autouse=True)
def left_as_it_was():
    before = settings_now()
    yield
    assert settings_now() == before, "a test left a setting of torch behind"


def planned(knob, site, value):
    return {"knob": knob, "site": site, "value": value}


@pytest.fixture
def program():
    return fake_program(torch)


@pytest.fixture
def switch(program):
    yield lambda *settings: ArmSwitch(list(settings), program)
    assert (program.events, program.errors) == ([], [])


def test_every_setting_of_an_arm_holds_while_it_is_on_and_not_before_or_after(switch):
    before = settings_now()
    other = 1 if before["threads"] > 1 else 2
    arm = switch(
        planned("host.num_threads", THREADS, other),
        planned("matmul.fp32_precision", PRECISION, "medium"),
        planned("cudnn.deterministic", CUDNN, not before["cudnn"]),
    )
    for _ in range(3):
        arm.on()
        found = settings_now()
        assert (found["threads"], found["precision"], found["cudnn"]) == (
            other,
            "medium",
            not before["cudnn"],
        )
        arm.off()
        assert settings_now() == before


def test_global_settings_are_read_back_when_the_arm_is_on(switch):
    before = settings_now()
    other = 1 if before["threads"] > 1 else 2
    arm = switch(
        planned("host.num_threads", THREADS, other),
        planned("cudnn.deterministic", CUDNN, not before["cudnn"]),
    )
    arm.on()
    answers = {one["knob"]: (one["found"], one["witness"], one["ok"]) for one in arm.acted()}
    torch.set_num_threads(before["threads"])  # a program that changes the setting meanwhile
    with pytest.raises(NotSwitched, match=r"host\.num_threads did not act"):
        arm.acted()
    assert (arm.unsuited, arm.blamed) == (["host.num_threads"], [])
    torch.set_num_threads(other)
    arm.off()
    assert answers == {
        "host.num_threads": (str(other), "torch.get_num_threads()", True),
        "cudnn.deterministic": (str(not before["cudnn"]).lower(), "torch.backends.cudnn.deterministic", True),
    }


def test_fused_is_read_from_the_parameter_groups_when_the_arm_is_on(switch):
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))])
    site = {"type": "constructor", "targets": ["torch.optim.Adam", "torch.optim.AdamW"], "argument": "fused"}
    arm = switch(planned("optimizer.fused", site, True))
    arm.on()
    (answer,) = arm.acted()
    assert (answer["found"], answer["witness"], answer["ok"]) == (
        "true",
        "fused of the optimizers' parameter groups",
        True,
    )
    optimizer.param_groups[0]["fused"] = None
    with pytest.raises(NotSwitched, match=r"optimizer\.fused did not act"):
        arm.acted()
    arm.off()


def test_arm_names_the_knob_that_cannot_be_switched_so_that_the_others_go_on_without_it(switch):
    module = {"type": "module", "action": "compile"}
    arm = switch(planned("cudnn.deterministic", CUDNN, True), planned("compile.mode", module, "default"))
    with pytest.raises(NotSwitched, match="no outermost module was called"):
        arm.on()
    arm.off()
    assert (arm.unsuited, arm.blamed) == (["compile.mode"], [])


def test_arm_switch_puts_back_what_a_setter_sets_beside_its_value(switch):
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        arm = switch(planned("determinism.algorithms", DETERMINISTIC, False))
        arm.on()
        assert not torch.are_deterministic_algorithms_enabled()
        arm.off()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def test_an_arm_that_the_program_has_already_is_none(switch):
    arm = switch(planned("cudnn.deterministic", CUDNN, torch.backends.cudnn.deterministic))
    with pytest.raises(HasAlready) as refused:
        arm.on()
    assert refused.value.code == Reason.HAS_ALREADY


def test_of_several_settings_those_that_the_program_has_are_left_alone(switch, program):
    before = settings_now()
    convolution = torch.nn.Conv2d(4, 4, 3).to(memory_format=torch.channels_last)
    program.roots.alive = lambda: [convolution]
    has = planned("layout.channels_last", {"type": "module", "action": "channels_last"}, True)
    arm = switch(has, planned("cudnn.deterministic", CUDNN, not before["cudnn"]))
    for _ in range(2):
        arm.on()
        assert torch.backends.cudnn.deterministic is not before["cudnn"]
        arm.off()
        assert convolution.weight.is_contiguous(memory_format=torch.channels_last)
    with pytest.raises(HasAlready):
        switch(has).on()


def test_a_program_that_changes_the_setting_while_the_arm_is_off_ends_it(switch):
    arm = switch(planned("matmul.fp32_precision", PRECISION, "high"))
    arm.on()
    arm.off()
    torch.set_float32_matmul_precision("medium")
    try:
        with pytest.raises(NotSwitched, match=r"sets matmul\.fp32_precision itself while it runs, to medium"):
            arm.on()
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
        for backend in (torch.backends.cuda, torch.backends.mkldnn):
            if hasattr(backend.matmul if hasattr(backend, "matmul") else None, "fp32_precision"):
                backend.matmul.fp32_precision = "none"


def test_arm_switch_keeps_a_programs_value_when_the_program_sets_it_while_the_arm_is_on(switch):
    before, num_threads = torch.backends.cudnn.deterministic, torch.get_num_threads()
    arm = switch(planned("cudnn.deterministic", CUDNN, not before), planned("host.num_threads", THREADS, 3))
    arm.on()
    torch.set_num_threads(5)
    try:
        with pytest.raises(NotSwitched, match=r"host\.num_threads itself"):
            arm.check()
        with pytest.raises(NotSwitched, match="to 5"):
            arm.off()
        assert torch.get_num_threads() == 5
        assert torch.backends.cudnn.deterministic == before
    finally:
        torch.set_num_threads(num_threads)


def test_a_setting_that_cannot_be_read_is_not_switched(switch):
    arm = switch(planned("cudnn.nothing", {"type": "attr", "path": "torch.backends.cudnn.nothing"}, True))
    with pytest.raises(NotSwitched, match="cannot be read"):
        arm.on()
    assert not hasattr(torch.backends.cudnn, "nothing")


def test_a_value_that_torch_refuses_leaves_the_others_as_they_were(switch):
    before = settings_now()
    arm = switch(
        planned("cudnn.deterministic", CUDNN, not before["cudnn"]), planned("host.num_threads", THREADS, -1)
    )
    with pytest.raises(NotSwitched, match=r"torch refuses host\.num_threads"):
        arm.on()
    arm.off()
    assert settings_now() == before


def test_autocast_acts_in_calls_while_it_is_on_and_says_where_it_did_not(switch):
    arm = switch(planned("precision.autocast", {"type": "module", "action": "autocast"}, "bf16"))
    module, inputs = torch.nn.Linear(4, 4), (torch.zeros(2, 4),)
    seen = []

    def call(module, *args):
        seen.append(torch.is_autocast_enabled("cpu"))
        return module(*args)

    arm.on()
    output = arm.around_root(call, module, inputs, {})
    arm.acted()
    arm.off()
    assert seen == [True]
    assert output.dtype is torch.float32
    arm.on()
    arm.around_root(call, torch.nn.Linear(4, 4).bfloat16(), (inputs[0].bfloat16(),), {})
    with pytest.raises(NotSwitched, match="the weights of Linear are bfloat16 already"):
        arm.acted()
    arm.off()


def test_calls_are_without_gradients_while_it_is_on_unless_an_optimizer_steps(switch, program):
    module, inputs = torch.nn.Linear(4, 4), (torch.zeros(2, 4),)
    arm = switch(planned("grad.mode", {"type": "module", "action": "grad_mode"}, "no_grad"))
    for _ in range(2):
        arm.on()
        assert not arm.around_root(torch.nn.Linear.forward, module, inputs, {}).requires_grad
        arm.acted()
        arm.off()
        assert module(*inputs).requires_grad
    program.steps.optimizers = [torch.optim.SGD(module.parameters(), lr=0.1)]
    with pytest.raises(NotSwitched, match="has an optimizer"):
        arm.on()
    arm.off()


@pytest.fixture
def halved(monkeypatch):
    """Stands for torchao: weights are halved, and listed."""
    halved = []

    def quantize_(model, config, filter_fn):
        for name, layer in model.named_modules():
            if filter_fn(layer, name):
                layer.weight = torch.nn.Parameter(layer.weight / 2)
                halved.append(layer.weight)

    quantization = SimpleNamespace(quantize_=quantize_, Int8WeightOnlyConfig=dict)
    monkeypatch.setitem(sys.modules, "torchao", SimpleNamespace(quantization=quantization))
    monkeypatch.setitem(sys.modules, "torchao.quantization", quantization)
    return halved


def test_quantized_weights_are_exchanged_for_the_own_ones_and_back(switch, program, halved):
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval()
    program.roots.alive = lambda: [net, torch.nn.CrossEntropyLoss()]
    own = net[0].weight
    arm = switch(planned("precision.quantize", {"type": "module", "action": "quantize"}, "int8-weights"))
    for _ in range(3):
        arm.on()
        assert [net[0].weight] == halved
        assert [(one["found"], one["ok"]) for one in arm.acted()] == [("int8-weights", True)]
        arm.off()
        assert net[0].weight is own


def test_other_modules_have_their_own_weights_when_one_cannot_be_quantized(switch, program, halved):
    net, trains = (
        torch.nn.Sequential(torch.nn.Linear(4, 4)).eval(),
        torch.nn.Sequential(torch.nn.Linear(4, 4)),
    )
    program.roots.alive = lambda: [net, trains]
    own = net[0].weight
    with pytest.raises(NotSwitched, match="for inference"):
        switch(planned("precision.quantize", {"type": "module", "action": "quantize"}, "int8-weights")).on()
    assert len(halved) == 1
    assert net[0].weight is own


def test_a_program_without_a_linear_layer_has_nothing_to_quantize(switch, program, halved):
    program.roots.alive = lambda: [torch.nn.Sequential(torch.nn.Conv2d(3, 3, 1)).eval()]
    with pytest.raises(NotSwitched, match="no module that was called has an"):
        switch(planned("precision.quantize", {"type": "module", "action": "quantize"}, "int8-weights")).on()


def test_weights_are_not_quantized_where_an_optimizer_steps(switch, program):
    program.steps.optimizers = [torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)]
    arm = switch(planned("precision.quantize", {"type": "module", "action": "quantize"}, "int8-weights"))
    with pytest.raises(NotSwitched, match="for inference"):
        arm.on()
