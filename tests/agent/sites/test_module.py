"""Settings that act on the outermost module."""

import json
import shutil

import pytest

from dynotune.agent.sites.repeated_shapes import RepeatedShapes

CONV = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3)
        self.head = torch.nn.Linear(8, 2)
    def forward(self, x):
        self.seen = [x.is_contiguous(memory_format=torch.channels_last), x.dtype]
        y = self.conv(x)
        self.inner_dtype = y.dtype
        return {"logits": self.head(y.mean((2, 3))), "both": (y, [y])}
net = Net()
x = torch.randn(2, 3, 8, 8)
"""


def test_channels_last_is_in_weights_and_inputs_and_training_goes_on(child):
    done = child(
        CONV
        + """
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
before = net.conv.weight
with torch.inference_mode():
    net(x)
net.train()
net(x)["logits"].sum().backward()
optimizer.step()
out["same"] = before is net.conv.weight
out["input"] = net.seen[0]
out["weight"] = net.conv.weight.is_contiguous(memory_format=torch.channels_last)
""",
        "layout.channels_last=true",
    )
    assert done.out == {"same": True, "input": True, "weight": True}
    assert done.readback["layout.channels_last"]["ok"] is True


def test_channels_last_on_a_model_without_convolutions_is_answered_with_no(child):
    done = child("import torch\ntorch.nn.Linear(2, 2)(torch.ones(1, 2))", "layout.channels_last=true")
    assert done.readback["layout.channels_last"]["ok"] is False


def test_autocast_runs_the_module_in_bf16_and_gives_back_float32(child):
    done = child(
        CONV
        + """
y = net(x)
out["inner"] = str(net.inner_dtype)
out["outer"] = [str(t.dtype) for t in (y["logits"], y["both"][0], y["both"][1][0])]
out["types"] = [type(y).__name__, type(y["both"]).__name__]
y["logits"].sum().backward()
out["grad"] = str(net.conv.weight.grad.dtype)
""",
        "precision.autocast=bf16",
    )
    assert done.out == {
        "inner": "torch.bfloat16",
        "outer": ["torch.float32"] * 3,
        "types": ["dict", "tuple"],
        "grad": "torch.float32",
    }
    assert done.readback["precision.autocast"]["ok"] is True


def test_fp16_in_training_is_refused_without_a_scaler_and_used_in_inference(child):
    done = child(
        CONV
        + """
net.eval()
with torch.no_grad():
    net(x)
out["eval"] = str(net.inner_dtype)
""",
        "precision.autocast=fp16",
    )
    assert done.out == {"eval": "torch.float16"}
    assert done.readback["precision.autocast"]["ok"] is True

    done = child(CONV + 'net(x)["logits"].sum().backward()\n', "precision.autocast=fp16")
    assert done.readback["precision.autocast"]["ok"] is False
    assert "GradScaler" in done.readback["precision.autocast"]["detail"]


def test_fp16_in_training_is_used_with_a_scaler(child):
    done = child(
        CONV
        + """
scaler = torch.amp.GradScaler("cpu")
scaler.scale(net(x)["logits"].sum()).backward()
out["inner"] = str(net.inner_dtype)
""",
        "precision.autocast=fp16",
    )
    assert done.out == {"inner": "torch.float16"}
    assert done.readback["precision.autocast"]["ok"] is True


def test_a_programs_own_autocast_is_kept_and_compared_with_what_was_asked(child):
    program = CONV + 'with torch.autocast("cpu", dtype=torch.bfloat16):\n    y = net(x)\n'
    done = child(program + 'out["outer"] = str(y["logits"].dtype)', "precision.autocast=bf16")
    assert done.out == {"outer": "torch.bfloat16"}
    assert done.readback["precision.autocast"]["ok"] is True
    done = child(program, "precision.autocast=fp16")
    assert done.readback["precision.autocast"]["ok"] is False
    assert done.readback["precision.autocast"]["found"] == "bf16"


def test_autocast_off_wins_over_the_programs_own_and_takes_its_half_precision_inputs(child):
    done = child(
        CONV
        + """
with torch.autocast("cpu", dtype=torch.bfloat16):
    y = net(x.bfloat16())
out["inner"] = str(net.inner_dtype)
""",
        "precision.autocast=off",
    )
    assert done.out == {"inner": "torch.float32"}
    assert done.readback["precision.autocast"]["ok"] is True


def test_the_programs_exceptions_come_through_unchanged(child):
    done = child(
        CONV
        + """
class Bad(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1, 1, 1, 1))
    def forward(self, x):
        raise KeyError("mine")
try:
    Bad()(x)
except KeyError as error:
    out["error"] = error.args[0]
out["left"] = torch.is_autocast_enabled("cpu")
""",
        "precision.autocast=bf16",
        "layout.channels_last=true",
    )
    assert done.out == {"error": "mine", "left": False}
    assert done.errors() == []


def test_layout_and_autocast_work_together(child):
    done = child(
        CONV + 'out["outer"] = str(net(x)["logits"].dtype)',
        "precision.autocast=bf16",
        "layout.channels_last=true",
    )
    assert done.out == {"outer": "torch.float32"}
    assert all(answer["ok"] is True for answer in done.readback.values())


def test_a_module_is_compiled_in_place_and_keeps_its_names(child):
    done = child(
        CONV
        + """
import os
keys = list(net.state_dict())
torch.compile, compile = (lambda model, **k: compile(model, backend="eager")), torch.compile
net(x); net(x)
out["keys"] = keys == list(net.state_dict())
out["class"] = type(net).__name__
""",
        "compile.mode=default",
    )
    assert done.out == {"keys": True, "class": "Net"}
    assert done.readback["compile.mode"]["ok"] is True


def test_calls_without_gradients_are_compiled_in_a_training_when_their_shapes_repeat(child):
    done = child(
        CONV
        + """
compiled = []
def noted(call, **how):
    def run(*args, **kwargs):
        compiled.append(list(args[0].shape))
        return call(*args, **kwargs)
    return run
torch.compile = noted
def generate(*lengths):
    compiled.clear()
    with torch.no_grad():
        for n in lengths:
            net(x[:, :, :, :n])
    return [each[-1] for each in compiled]
net(x)
out["before steps"] = generate(4, 4)
net(x)
out["steps"] = len(compiled)
out["grows"], out["repeats"] = generate(5, 6, 7), generate(8, 8, 8)
compiled.clear()
net(x)
out["steps again"] = len(compiled)
""",
        "compile.mode=default",
    )
    assert done.out == {"before steps": [], "steps": 1, "grows": [], "repeats": [8, 8], "steps again": 1}
    assert done.readback["compile.mode"]["ok"] is True


def test_read_back_says_no_when_all_calls_of_an_arm_ran_uncompiled():
    torch = pytest.importorskip("torch")
    net = torch.nn.Linear(2, 2)
    standing_in = RepeatedShapes(net, net._call_impl, torch, trains=True)
    with torch.no_grad():
        standing_in(torch.ones(1, 2))
        assert standing_in.only_ran_eagerly
    standing_in(torch.ones(1, 2))
    assert not standing_in.only_ran_eagerly


def test_calls_are_compiled_whatever_their_shapes_when_the_program_computes_no_gradients(child):
    done = child(
        CONV
        + """
compiled = []
torch.compile = lambda call, **how: lambda *args, **kwargs: compiled.append(1) or call(*args, **kwargs)
with torch.inference_mode():
    for n in (8, 7, 6, 5):
        net(x[:, :, :, :n])
out["compiled"] = len(compiled)
""",
        "compile.mode=reduce-overhead",
    )
    assert done.out == {"compiled": 3}


def test_a_class_that_means_something_else_by_compile_is_compiled_all_the_same(child):
    done = child(
        CONV
        + """
torch.compile, compile = (lambda model, **k: compile(model, backend="eager")), torch.compile
class Task(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = net
    def forward(self, x):
        return self.net(x)
    def compile(self, backend="inductor", mode=None):
        raise AssertionError("it is the program's")
task = Task()
task(x); task(x)
out["compiled"] = task._compiled_call_impl is not None
""",
        "compile.mode=default",
    )
    assert done.out == {"compiled": True}
    assert done.readback["compile.mode"]["ok"] is True


COMPILED = {
    "knob": "compile.mode",
    "value": "default",
    "site": {"type": "module", "action": "compile"},
    "keep": False,
}
ANCHORED = """
import torch
class Layer(torch.nn.Linear):
    anchors = None
    def forward(self, x):
        if self.anchors is None:
            self.anchors = torch.full((8,), x.abs().max().item())
        return super().forward(x) + self.anchors
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer(8, 8) for _ in range(4))
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
num_graphs = 0
def count(graph, inputs):
    global num_graphs
    num_graphs += 1
    return graph.forward
torch.compile, compile = (lambda model, **k: compile(model, backend=count)), torch.compile
net = Net()
for _ in range(4):
    net(torch.randn(2, 8))
print(num_graphs)
"""


def test_compiled_module_keeps_a_whole_graph_when_its_first_call_makes_and_keeps_a_tensor(
    fork_under_agent, script
):
    ran = fork_under_agent([script(ANCHORED)], settings=[COMPILED])
    assert (ran.stdout.strip(), ran.returncode) == ("1", 0), ran.stderr


def test_a_part_that_ran_by_itself_before_is_compiled_with_the_whole(child):
    done = child(
        CONV
        + """
torch.compile, compile = (lambda model, **k: compile(model, backend="eager")), torch.compile
net.conv(x)
out["part"] = net.conv._compiled_call_impl is not None
net(x); net(x)
out["part then"], out["whole"] = net.conv._compiled_call_impl is not None, net._compiled_call_impl is not None
""",
        "compile.mode=default",
    )
    assert done.out == {"part": True, "part then": False, "whole": True}
    assert done.readback["compile.mode"]["ok"] is True


def test_a_part_that_goes_on_running_by_itself_is_compiled_too(child):
    done = child(
        CONV
        + """
torch.compile, compile = (lambda model, **k: compile(model, backend="eager")), torch.compile
for _ in range(3):
    net.conv(x)
    net(x)
out["compiled"] = [m._compiled_call_impl is not None for m in (net, net.conv)]
""",
        "compile.mode=default",
    )
    assert done.out == {"compiled": [True, True]}
    assert done.readback["compile.mode"]["ok"] is True


WITH_ITS_LOSS = """
import copy, io, pickle, types, torch
class Detector(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    def forward(self, x):
        return self.loss(x) if isinstance(x, dict) else self.net(x)
    def loss(self, batch):
        predicted = self.forward(batch["img"])
        wanted = torch.zeros_like(predicted)
        wanted[: int(batch["n"].max())] = 1.0
        return (predicted - wanted).square().sum()
def batch(n):
    torch.manual_seed(n)
    return {"img": torch.randn(8, 8), "n": torch.tensor([n]), "files": ["a.jpg", "b.jpg"]}
graphs = []
def count(graph, inputs):
    graphs.append(graph)
    return graph.forward
torch.compile, compile = (lambda model, **k: compile(model, backend=count)), torch.compile
torch.manual_seed(0)
net = Detector()
weights = set(vars(net))
losses = []
for n in range(1, 7):
    loss = net(batch(n))
    loss.backward()
    losses.append(loss.item())
"""


def test_a_module_that_takes_its_loss_itself_is_compiled_without_it(fork_under_agent, script):
    program = script(
        WITH_ITS_LOSS
        + """
as_found = set(vars(net)) - weights <= {"_compiled_call_impl"}
other = copy.deepcopy(net)
as_copied = other._compiled_call_impl is None and set(vars(other)) == weights
shape = tuple(net(torch.randn(8, 8)).shape)
print(len(graphs), as_found, as_copied, shape)
print(losses)
"""
    )
    ran, plain = fork_under_agent([program], settings=[COMPILED]), fork_under_agent([program], settings=[])
    told, losses = ran.stdout.splitlines()
    assert (told, ran.returncode) == ("1 True True (8, 4)", 0), ran.stderr
    assert json.loads(losses) == pytest.approx(json.loads(plain.stdout.splitlines()[1]))


WHAT_A_PROGRAM_DOES = {
    "a first call fails": """
fresh = Detector()
for fails in ("in forward", "in a hook"):
    hook = fresh.register_forward_pre_hook(lambda *_: 1 / 0) if fails == "in a hook" else None
    try:
        fresh({**batch(1), "img": torch.randn(8, 9)})
    except (RuntimeError, ZeroDivisionError) as error:
        print(type(error).__name__)
hook.remove()
pickle.dumps(fresh)
print(fresh(batch(1)).item())
""",
    "forward is put in and taken out again": """
def none(self, x):
    return 0.0 * Detector.forward(self, x)
net.forward = types.MethodType(none, net)
print(net(batch(1)).item(), "forward" in vars(net))
del net.forward
print(net(batch(1)).item(), "forward" in vars(net))
forward, Detector.forward = Detector.forward, lambda self, x: 0.0 * forward(self, x)
print(net(batch(1)).item())
""",
    "hooks copy and save": """
class Teacher(Detector):
    teacher = None
    def forward(self, x):
        if isinstance(x, dict) and self.teacher is None:
            object.__setattr__(self, "teacher", copy.deepcopy(self))
        return super().forward(x)
copies = []
def hook(module, given, made):
    if isinstance(given[0], dict):
        pickle.dumps(module)
        copies.append(copy.deepcopy(module))
net = Teacher()
handle = net.register_forward_hook(hook)
for n in (1, 2, 3):
    net(batch(n))
handle.remove()
with torch.no_grad():
    for one in (net.teacher, *copies):
        for weight in one.parameters():
            weight.zero_()
        print(one(torch.randn(8, 8)).abs().sum().item())
""",
    "a batch holds itself": """
class Sum(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x["x"]).sum()
given = {"x": torch.ones(2, 8)}
given["self"] = given
torch.manual_seed(0)
net = Sum(8, 4)
print(net(given).item(), net(given).item())
""",
}


@pytest.mark.parametrize("what", WHAT_A_PROGRAM_DOES)
def test_a_program_whose_module_takes_its_loss_itself_runs_as_without(fork_under_agent, script, what):
    program = script(WITH_ITS_LOSS + WHAT_A_PROGRAM_DOES[what])
    ran, plain = fork_under_agent([program], settings=[COMPILED]), fork_under_agent([program], settings=[])
    assert (ran.returncode, plain.returncode) == (0, 0), ran.stderr + plain.stderr
    assert ran.stdout.splitlines() == plain.stdout.splitlines()


def test_of_two_calls_of_itself_the_second_would_overwrite_what_the_first_gave_so_all_is_compiled(child):
    done = child(
        WITH_ITS_LOSS
        + """
class Siamese(Detector):
    def loss(self, batch):
        return (self.forward(batch["img"]) - self.forward(batch["img"].flip(0))).square().sum()
net = Siamese()
for n in (1, 2):
    net(batch(n))
out["compiled"] = type(net._compiled_call_impl).__name__
""",
        "compile.mode=default",
    )
    assert done.out["compiled"] != "CompiledInside"
    assert "itself" in done.readback["compile.mode"]["detail"]  # of the first one


@pytest.mark.parametrize("given", ["x, depth=2", "{'x': x}, depth=2"])
def test_a_module_that_calls_itself_and_is_given_tensors_only_is_compiled_whole(
    fork_under_agent, script, given
):
    program = f"""
import torch
class Tree(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
    def forward(self, x, depth=0):
        x = x["x"] if isinstance(x, dict) else x
        x = self.linear(x)
        return self.forward(x, depth - 1) if depth else x
sizes = []
def count(graph, inputs):
    sizes.append(sum(node.op in ("call_function", "call_module") for node in graph.graph.nodes))
    return graph.forward
torch.compile, compile = (lambda model, **k: compile(model, backend=count)), torch.compile
net, x = Tree(), torch.randn(4, 8)
for _ in range(3):
    net({given})
print(sizes)
"""
    ran = fork_under_agent([script(program)], settings=[COMPILED])
    assert (ran.stdout.strip(), ran.returncode) == ("[3]", 0), ran.stderr


def test_a_module_that_the_program_compiles_itself_is_left_to_it(child):
    done = child(
        CONV + 'torch.compile(net, backend="eager")(x)\nnet.compile(backend="eager")\nnet(x)',
        "compile.mode=default",
    )
    assert done.readback["compile.mode"]["ok"] is False
    assert "compiles" in done.readback["compile.mode"]["detail"]


def test_off_makes_the_programs_own_compile_run_eagerly_and_keeps_its_wrapper(child):
    done = child(
        CONV
        + """
def never(graph, inputs):
    raise AssertionError("compiled")
compiled = torch.compile(net, backend=never)
compiled(x)
out["wrapper"] = hasattr(compiled, "_orig_mod")
net.compile(backend=never)
net(x)
@torch.compile(backend=never)
def double(y):
    return y * 2
double(x)
if hasattr(torch.compiler, "set_stance"):  # from torch 2.6 on
    torch.compiler.set_stance("default")
settings.hold()
double(x)
""",
        "compile.mode=off",
    )
    assert done.out == {"wrapper": True}
    assert done.readback["compile.mode"]["ok"] is True


def test_off_does_not_import_the_compiler_for_a_program_that_never_compiles(child):
    done = child(
        CONV + "import sys\nnet(x)\nsettings.hold()\nout['dynamo'] = 'torch._dynamo' in sys.modules",
        "compile.mode=off",
        compiler=False,
    )
    assert done.out == {"dynamo": False}
    assert done.readback["compile.mode"]["ok"] is True


@pytest.mark.long
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile on the CPU needs g++")
def test_a_compiled_module_trains_and_evaluates_with_layout_and_autocast(child):
    done = child(
        CONV
        + """
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
del Net.forward
Net.forward = lambda self, x: self.head(self.conv(x).mean((2, 3)))
with torch.inference_mode():
    net.eval()
    net(x)
net.train()
for _ in range(2):
    y = net(x)
    y.sum().backward()
    optimizer.step()
out["outer"] = str(y.dtype)
out["grad"] = bool(net.conv.weight.grad.abs().sum() > 0)
""",
        "compile.mode=default",
        "precision.autocast=bf16",
        "layout.channels_last=true",
    )
    assert done.out == {"outer": "torch.float32", "grad": True}
    assert done.errors() == []
    assert {answer["ok"] for answer in done.readback.values()} == {True}


GRAD_MODE = "grad.mode=no_grad"


@pytest.mark.parametrize(("mode", "is_inference"), [("no_grad", False), ("inference_mode", True)])
def test_calls_of_the_model_keep_nothing_for_a_backward_pass(child, mode, is_inference):
    done = child(
        CONV
        + """
y = net(x)["logits"]
out["needs"], out["inference"] = y.requires_grad, y.is_inference()
out["around"] = torch.is_grad_enabled()
""",
        f"grad.mode={mode}",
    )
    assert done.out == {"needs": False, "inference": is_inference, "around": True}
    assert done.readback["grad.mode"]["ok"] is True


@pytest.mark.parametrize("before", ["", "with torch.no_grad():\n    net.eval()(x)\nnet.train()(x)\n"])
def test_a_program_with_an_optimizer_keeps_its_gradients(child, before):
    done = child(
        CONV
        + before
        + """
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
net(x)["logits"].sum().backward()
optimizer.step()
out["grad"] = bool(net.conv.weight.grad.abs().sum() > 0)
""",
        GRAD_MODE,
    )
    assert done.out == {"grad": True}
    answer = done.readback["grad.mode"]
    assert (answer["ok"], answer["detail"]) == (False, "the program has an optimizer, so it needs gradients")


def test_a_program_that_disables_gradients_itself_has_nothing_to_gain(child):
    done = child(CONV + "with torch.no_grad():\n    net(x)\n", GRAD_MODE)
    answer = done.readback["grad.mode"]
    assert (answer["ok"], answer["detail"]) == (False, "no outermost module was called with gradients")
