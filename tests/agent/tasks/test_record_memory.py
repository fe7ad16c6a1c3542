"""The allocator recorded in a few steps of a real model, on a device that is made up, and accounted for."""

import functools
import gc
import importlib
from pathlib import Path

import pytest

from dynotune.agent.tasks.record_memory import RecordMemory
from dynotune.memory import account
from dynotune.schema import document
from dynotune.schema.facts import Unknown
from dynotune.schema.memory import Moment, Owners
from dynotune.trace.snapshot import load_snapshot

from .fake_cuda import TOTAL_BYTES, FakeCuda
from .fake_program import fake_program

torch = pytest.importorskip("torch")

WIDTH, BATCH = 256, 64
CONTEXT = 100 << 20


class Training:
    """A model that trains on the made-up device, with the task told of each step."""

    def __init__(self, folder: Path, monkeypatch, *, optimizer="AdamW", trains=True, **fake):
        self.cuda = FakeCuda(torch, monkeypatch, **fake)
        self.trains = trains
        layers = [torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH)]
        self.net = torch.nn.Sequential(*layers)
        self.weights = list(self.net.parameters())
        self.optimizer = getattr(torch.optim, optimizer)(self.weights, lr=0.01)
        for weight in self.weights:
            self.cuda.meet(weight)
        self.program = fake_program(torch, folder=folder, optimizers=[self.optimizer])
        self.program.roots.alive = lambda: [self.net]
        self.num_steps = 0

    def step(self, batch=BATCH):
        with self.cuda.mode():
            inputs = torch.randn(batch, WIDTH)
            if self.trains:
                self.optimizer.zero_grad()
                loss = self.net(inputs).square().mean()
                loss.backward()
                self.optimizer.step()
            else:
                with torch.no_grad():
                    self.net(inputs)
            self.num_steps += 1
            self.program.steps.num_samples += batch

    def records(self, **order):
        """Let the task record; its result."""
        task = RecordMemory(self.program, {"id": 1, "num_steps": 2, **order})
        for _ in range(3):
            self.step()
        task.reached(self.num_steps)
        for _ in range(12):
            if task.done:
                break
            self.step()
            task.reached(self.num_steps)
        assert not self.program.errors, self.program.errors
        return task.result

    def accounted(self, result, *, process_bytes=None):
        folder = Path(self.program.folder)
        owners = document.read(folder / result["owners"], Owners)
        lives = load_snapshot(folder / result["file"], limit_bytes=1 << 28)
        (device,) = owners.devices
        own = device.reserved_bytes + CONTEXT if process_bytes is None else process_bytes
        return account(device, owners, lives[0], process_bytes=own, others_bytes=0, pid=1)


@pytest.fixture
def training(tmp_path, monkeypatch):
    gc.collect()
    return lambda **how: Training(tmp_path, monkeypatch, **how)


def num_bytes(tensors):
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def test_the_terms_of_a_training_step_are_those_of_its_tensors_and_add_up(training):
    run = training()
    found = run.accounted(run.records())
    weights = num_bytes(run.weights)
    peak, steady = found.peak, found.steady
    assert isinstance(peak, Moment)
    assert isinstance(steady, Moment)
    assert peak.of("weights") == steady.of("weights") == weights
    # Adam keeps two moments and counts steps.
    assert steady.of("optimizer") == pytest.approx(2 * weights, abs=64)
    assert steady.of("gradients") == weights
    assert peak.of("inputs") == BATCH * WIDTH * 4
    assert peak.of("context") == CONTEXT
    for moment in (peak, steady):
        assert moment.total_bytes == moment.process_bytes == CONTEXT + moment.reserved_bytes
        assert moment.of("unknown") == 0
    assert found.trains
    assert found.num_samples == BATCH
    assert found.total_bytes == TOTAL_BYTES


def test_activations_are_told_by_the_module_whose_forward_made_them(training):
    run = training(optimizer="SGD")
    large = 4096  # samples, so that activations outweigh the gradients
    run.step = functools.partial(run.step, large)
    peak = run.accounted(run.records()).peak
    (term,) = [term for term in peak.terms if term.name == "activations"]
    by_module = term.modules
    assert by_module["Sequential.1"] == large * WIDTH * 4
    assert all(name.startswith("Sequential") for name in by_module)


def test_inference_keeps_no_gradients(training):
    run = training(trains=False)
    found = run.accounted(run.records())
    assert not found.trains
    assert found.peak.of("gradients") == found.peak.of("optimizer") == 0
    assert found.peak.of("activations") > 0
    assert found.facts["grad_enabled"] is False


def test_workspaces_are_known_by_their_release(training):
    run = training()
    run.cuda.hold_workspace(8 << 20)
    assert run.accounted(run.records()).steady.of("workspaces") == 8 << 20


def test_tensors_that_the_program_keeps_besides_are_named_so(training):
    run = training()
    with run.cuda.mode():
        kept = torch.zeros(1 << 18)
    assert run.accounted(run.records()).steady.of("kept") >= num_bytes([kept])


def test_without_a_count_of_the_driver_the_terms_add_up_to_what_is_reserved(training):
    run = training()
    found = run.accounted(run.records(), process_bytes=Unknown("no NVML"))
    assert isinstance(found.peak.process_bytes, Unknown)
    assert found.peak.total_bytes == found.peak.reserved_bytes


def test_nothing_stays_on_modules_or_optimizers(training):
    before = torch.nn.Module._call_impl
    run = training()
    run.records()
    assert torch.nn.Module._call_impl is before
    assert not run.cuda.is_recording
    hooks = importlib.import_module("torch.optim.optimizer")
    assert not hooks._global_optimizer_pre_hooks


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"backend": "cudaMallocAsync"}, "cudaMallocAsync"),
        ({"backend": "pluggable"}, "pluggable"),
        ({"records_itself": True}, "records the allocator's history itself"),
    ],
)
def test_a_program_whose_allocator_cannot_be_recorded_is_left_alone(training, how, reason):
    run = training(**how)
    result = run.records()
    assert result["event"] == "given_up"
    assert reason in result["reason"]
    assert run.cuda.is_recording is how.get("records_itself", False)


def test_a_program_that_compiles_is_recorded_without_its_modules(training):
    run = training()
    run.program.num_compilations = 1
    found = run.accounted(run.records())
    assert found.peak.of("weights") == num_bytes(run.weights)
    assert all(not term.modules for term in found.peak.terms)
    assert any("modules are unknown" in note for note in found.notes)
