"""Weights in 8 bits, by a torchao of the program's environment: the real one where it is installed."""

import importlib.util

import pytest

NET = """
import torch
torch.manual_seed(0)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU())
        self.head = torch.nn.Linear(64, 8)
    def forward(self, x):
        return self.head(self.body(x))
net = Net().eval()
x = torch.randn(32, 64)
def kinds():
    return [type(layer.weight).__name__ for layer in (net.body[0], net.head)]
"""
# Rounds weights in place of torchao, by its documented call.
MADE_UP = """
import sys, types, torch
class Rounded(torch.nn.Parameter):
    pass
def quantize_(model, config, filter_fn):
    for name, layer in model.named_modules():
        if filter_fn(layer, name):
            layer.weight = Rounded((layer.weight * 100).round() / 100)
torchao, quantization = types.ModuleType("torchao"), types.ModuleType("torchao.quantization")
quantization.quantize_, quantization.Int8WeightOnlyConfig = quantize_, dict
quantization.Int8DynamicActivationInt8WeightConfig = dict
torchao.quantization = quantization
sys.modules.update({"torchao": torchao, "torchao.quantization": quantization})
"""
ROUNDS = "layer.weight = Rounded((layer.weight * 100).round() / 100)\n"
FREEZES = "                layer.weight = torch.nn.Parameter(layer.weight, requires_grad=False)\n"
INT8_BOTH = "precision.quantize=int8"
INT8, KEEP = "precision.quantize=int8-weights", "precision.quantize_keep=head"
has_torchao = pytest.mark.skipif(not importlib.util.find_spec("torchao"), reason="torchao is not installed")


@has_torchao
@pytest.mark.parametrize("kind", ["int8", "int8-weights", "fp8-weights"])
def test_torchao_holds_the_weights_in_8_bits_and_results_stay_close(child, kind):
    done = child(
        NET
        + """
expected = torch.nn.functional.linear(net.body(x), net.head.weight, net.head.bias)
with torch.no_grad():
    found = net(x)
out["kinds"] = kinds()
out["error"] = float((found - expected).norm() / expected.norm())
""",
        f"precision.quantize={kind}",
    )
    assert "Parameter" not in done.out["kinds"]
    assert 0 < done.out["error"] < 0.1
    assert done.readback["precision.quantize"]["ok"] is True


def test_the_layers_of_modules_that_are_kept_stay_as_they_are(child):
    done = child(MADE_UP + NET + "with torch.no_grad():\n    net(x)\nout['kinds'] = kinds()", INT8, KEEP)
    assert done.out["kinds"] == ["Rounded", "Parameter"]
    answer = done.readback["precision.quantize"]
    assert (answer["ok"], answer["detail"]) == (True, "1 of 2 nn.Linear")
    assert done.readback["precision.quantize_keep"]["ok"] is True


@pytest.mark.parametrize(
    ("device", "kinds"), [("meta", ["Rounded", "Parameter"]), ("cpu", ["Rounded", "Rounded"])]
)
def test_layers_that_torchao_would_multiply_on_the_host_keep_their_weights(child, device, kinds):
    odd = f"net.head = torch.nn.Linear(64, 57)\nnet, x = net.eval().to('{device}'), x.to('{device}')\n"
    done = child(MADE_UP + NET + odd + "with torch.no_grad():\n    net(x)\nout['kinds'] = kinds()", INT8_BOTH)
    assert done.out["kinds"] == kinds
    assert done.readback["precision.quantize"]["detail"] == f"{kinds.count('Rounded')} of 2 nn.Linear"


@pytest.mark.parametrize("condition", ["True", "name == 'head'"])
def test_a_weight_that_torchao_puts_back_as_it_was_does_not_count_and_can_be_trained(child, condition):
    """It does so with floating-point layers whose sizes its kernel cannot take."""
    same = MADE_UP.replace(ROUNDS, f"if {condition}:\n{FREEZES}            else:\n                {ROUNDS}")
    program = (
        "own = net.head.weight\nwith torch.no_grad():\n    net(x)\nout['same'] = net.head.weight is own\n"
    )
    done = child(same + NET + program + "out['trains'] = net.head.weight.requires_grad", INT8)
    assert done.out == {"same": True, "trains": True}
    answer = done.readback["precision.quantize"]
    assert answer["ok"] is (condition != "True")
    assert ("0 of 2 nn.Linear" if condition == "True" else "1 of 2 nn.Linear") in str(answer)


def test_a_module_to_be_kept_that_is_not_there_is_named(child):
    done = child(MADE_UP + NET + "net(x)\nout['kinds'] = kinds()", INT8, "precision.quantize_keep=tail")
    assert done.out["kinds"] == ["Parameter", "Parameter"]
    assert "Net has no module tail" in str(done.readback["precision.quantize"])


TWO = """
other = torch.nn.Sequential(torch.nn.Linear(64, 64)).eval()
own = [net.body[0].weight, net.head.weight]
with torch.no_grad():
    net(x)
    try:
        other(x)
    finally:
        out['kinds'] = [*kinds(), type(other[0].weight).__name__]
"""


def test_a_layer_that_one_model_keeps_need_not_be_in_another(child):
    done = child(MADE_UP + NET + TWO, INT8, KEEP)
    assert done.out["kinds"] == ["Rounded", "Parameter", "Rounded"]
    answer = done.readback["precision.quantize"]
    assert (answer["ok"], answer["detail"]) == (True, "1 of 2 nn.Linear; 1 of 1 nn.Linear")


@has_torchao
def test_the_real_torchao_quantizes_two_models_of_which_one_keeps_a_layer(child):
    done = child(NET + TWO, INT8, KEEP)
    assert [kind == "Parameter" for kind in done.out["kinds"]] == [False, True, False]
    assert done.readback["precision.quantize"]["ok"] is True


def test_a_model_that_cannot_be_quantized_leaves_none_of_them_so(child):
    refuses = """
quantize = quantization.quantize_
def refuse(model, config, filter_fn):
    if isinstance(model, torch.nn.Sequential):
        raise ValueError("no kernel for it")
    quantize(model, config, filter_fn)
quantization.quantize_ = refuse
"""
    done = child(MADE_UP + refuses + NET + TWO, INT8)
    assert done.out["kinds"] == ["Parameter", "Parameter", "Parameter"]
    answer = done.readback["precision.quantize"]
    assert answer["ok"] is False
    assert "no kernel for it" in str(answer)


def test_a_loss_that_is_called_beside_the_model_has_no_say(child):
    program = """
with torch.no_grad():
    torch.nn.CrossEntropyLoss()(net(x), torch.zeros(32, dtype=torch.long))
out['kinds'] = kinds()
"""
    done = child(MADE_UP + NET + program, INT8, KEEP)
    assert done.out["kinds"] == ["Rounded", "Parameter"]
    assert done.readback["precision.quantize"]["ok"] is True


def test_quantize_leaves_weights_alone_with_the_reason_when_a_model_trains(child):
    done = child(MADE_UP + NET + "net.train()\nnet(x).sum().backward()\nout['kinds'] = kinds()", INT8)
    assert done.out["kinds"] == ["Parameter", "Parameter"]
    answer = done.readback["precision.quantize"]
    assert answer["ok"] is False
    assert "for inference" in str(answer)


def test_training_that_begins_after_a_first_evaluation_has_its_own_weights(child):
    done = child(
        MADE_UP
        + NET
        + """
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
before = net.head.weight.detach().clone()
with torch.no_grad():
    net(x)
out["evaluated"] = kinds()
net.train()
net(x).sum().backward()
optimizer.step()
out["kinds"] = kinds()
out["moved"] = not torch.equal(before, net.head.weight)
""",
        INT8,
    )
    assert done.out == {"evaluated": ["Rounded"] * 2, "kinds": ["Parameter"] * 2, "moved": True}
    assert done.readback["precision.quantize"]["ok"] is False


def test_a_torchao_that_is_missing_or_too_old_is_said(child):
    hidden = "import sys\nsys.modules['torchao'] = None\n"
    older = MADE_UP + "del quantization.Int8WeightOnlyConfig\n"
    for program in (hidden, older):
        done = child(program + NET + "net(x)\nout['kinds'] = kinds()", INT8)
        assert done.out["kinds"] == ["Parameter", "Parameter"]
        assert "torchao is missing or too old" in str(done.readback["precision.quantize"])
